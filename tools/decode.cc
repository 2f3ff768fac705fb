// flashlatent decode CASE
#include <fmt/core.h>

#include "dispatch/select.h"
#include "io/case.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "tools/command.h"
#include "tools/decode_index.h"
#include "tools/decode_prefill.h"

namespace flashlatent::tools {

namespace {

struct DecodeOptions {
  std::string path;
  std::string output;
  std::string json;
  std::string sharing = "off";
  ExecutorOptions executor;
};

int run_decode(const DecodeOptions& options) {
  if (Status status = check_files_differ({{"CASE", options.path, false},
                                          {"--output", options.output, true},
                                          {"--json", options.json, true}});
      !status.ok()) {
    return fail(status);
  }
  ExecutorOptions without_kernel = options.executor;  // which kernels there are depends on the case
  without_kernel.kernel.clear();
  Result<Executor> executor = make_executor(without_kernel);
  if (!executor.ok()) return fail(executor.status());
  executor->kernel = options.executor.kernel;
  Result<io::DecodeCase> loaded = io::load_case(options.path);
  if (!loaded.ok()) return fail(loaded.status());
  const io::DecodeCase& decode_case = *loaded;
  if (decode_case.kind != io::CaseKind::kIndexTopk) {
    if (Status status = validate(*executor); !status.ok()) return fail(status);
  }
  for (const std::string& name : decode_case.unknown_names()) {
    tell("flashlatent: {}: {} is no part of a case, and is left out\n", options.path, io::in_quotes(name));
  }
  if (decode_case.kind == io::CaseKind::kIndexTopk) {
    if (options.sharing != "off") {
      return fail({StatusCode::kInvalidArgument,
                   fmt::format("--prefix-sharing is {}, and {} is an index_topk case; off is accepted",
                               options.sharing, options.path)});
    }
    return decode_index(decode_case, {options.path, options.output, options.json}, *executor);
  }
  if (decode_case.kind == io::CaseKind::kSparsePrefill) {
    if (options.sharing == "always") {
      return fail(
          {StatusCode::kInvalidArgument,
           fmt::format("--prefix-sharing is always, and {} is a sparse prefill, which goes by indices; off "
                       "and auto are accepted",
                       options.path)});
    }
    return decode_prefill(decode_case, {options.path, options.output, options.json}, *executor);
  }
  Result<DecodeProblem> problem = decode_case.problem();
  if (!problem.ok()) return fail(problem.status());
  const DecodeInputs inputs = decode_case.inputs();
  problem->options.prefix_sharing = *prefix_sharing_from_name(options.sharing);

  Result<runtime::DecodeRun> run =
      runtime::DecodeRun::create(*problem, inputs, *executor, decode_case.out_fp8);
  if (!run.ok()) return fail(run.status());
  if (Status status = run->check_inputs(); status.code() == StatusCode::kInvalidArgument) {
    // A case may hold any page number.
    tell("flashlatent: {}: {}; it is read as a negative one\n", options.path, status.message());
  } else if (!status.ok()) {
    return fail(status);
  }
  if (Status status = run->run(); !status.ok()) return fail(status);
  if (Status status = run->fetch(); !status.ok()) return fail(status);
  if (!options.output.empty()) {
    const Status status =
        write_results(options.output, {{"out", run->out()}, {"lse", run->lse()}}, run->fp8());
    if (!status.ok()) return fail(status);
  }

  const bool has_reference = decode_case.out_ref().present() || decode_case.lse_ref().present();
  const runtime::Comparison comparison =
      runtime::compare(*problem, inputs, run->out(), run->lse(), decode_case.out_ref(), decode_case.lse_ref(),
                       {}, {}, run->fp8());
  fmt::print("{} on {}\n", to_string(*problem), to_string(executor->backend));
  fmt::print("{}: {}\n",
             has_reference ? "against the file's reference" : "the file has no reference; against the oracle",
             runtime::to_string(comparison));
  const nlohmann::ordered_json document = {{"case", options.path},
                                           {"backend", to_string(executor->backend)},
                                           {"problem", to_string(*problem)},
                                           {"reference", has_reference ? "file" : "oracle"},
                                           {"rows", comparison.rows},
                                           {"wrong_rows", comparison.wrong_rows},
                                           {"relative_error", comparison.relative_error},
                                           {"plain_relative_error", comparison.plain_relative_error},
                                           {"lse_error", comparison.lse_error},
                                           {"ok", comparison.ok()}};
  if (Status status = write_json(options.json, document); !status.ok()) return fail(status);
  return comparison.ok() ? kRight : kWrongResult;
}

}  // namespace

void add_decode(CLI::App& app, Action& action) {
  CLI::App* decode = app.add_subcommand("decode", "Run one case file and compare with its reference");
  auto options = std::make_shared<DecodeOptions>();
  decode
      ->add_option("CASE", options->path,
                   "A safetensors file: the inputs of one call, and perhaps its outputs")
      ->required();
  decode
      ->add_option("-o,--output", options->output,
                   "Write out and lse (of sparse prefill max_logits, too; an FP8 output's out_fp8.codes and "
                   "out_fp8.scales; of index_topk indices, counts and scores) to this safetensors file")
      ->check(writable_file());
  decode
      ->add_option("--prefix-sharing", options->sharing,
                   "Do requests with the same first pages attend to those by groups? auto: where it pays")
      ->check(CLI::IsMember({"off", "auto", "always"}))
      ->capture_default_str();
  add_executor_options(*decode, options->executor);
  add_json_option(*decode, options->json);
  decode->footer(
      "Without a reference in the file the result is compared with the float64 oracle.\n"
      "Example: flashlatent decode case.safetensors --backend cpu -o result.safetensors");
  decode->callback([&action, options] { action = [options] { return run_decode(*options); }; });
}

}  // namespace flashlatent::tools
