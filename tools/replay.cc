// flashlatent replay TRACE
#include "serve/replay.h"

#include <fmt/core.h>

#include <cstdio>

#include "io/trace.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress.h"
#include "tools/source_tree.h"

namespace flashlatent::tools {

namespace {

constexpr int kMostRequests = 10'000'000;
constexpr int kSyntheticRequests = 12;

struct ReplayCommand {
  std::string trace;
  bool synthetic = false;
  bool has_heads = false;  // --heads is given
  std::string write_trace;
  int requests = 0;  // 0: not given
  std::string kv = "bf16", scale_place;
  std::string model = "mla", sharing = "auto";
  serve::ReplayOptions replay;
  ExecutorOptions executor;
  std::string json;
};

Result<std::vector<io::TraceRequest>> read_trace(const ReplayCommand& command) {
  if (command.synthetic != command.trace.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  command.synthetic
                      ? fmt::format("TRACE {} and --synthetic exclude each other", command.trace)
                      : "replay needs a TRACE file, or --synthetic to make one up (try --help)");
  }
  if (!command.synthetic) {
    return io::load_trace(
        command.trace, command.requests > 0 ? static_cast<std::size_t>(command.requests) : io::kAllRequests);
  }
  return io::synthetic_trace(command.requests > 0 ? command.requests : kSyntheticRequests,
                             command.replay.seed);
}

nlohmann::ordered_json to_json(const ReplayCommand& command) {
  const serve::ReplayOptions& o = command.replay;
  nlohmann::ordered_json json = {{"trace", command.synthetic ? "synthetic" : command.trace},
                                 {"layers", o.layers},
                                 {"model", command.model},
                                 {"heads", o.heads},
                                 {"batch", o.batch},
                                 {"prefix_sharing", to_string(o.prefix_sharing)},
                                 {"pool_tokens", o.pool_tokens},
                                 {"page_size", o.page_size},
                                 {"kv", command.kv},
                                 {"scale_place", to_string(o.scales)},
                                 {"immediate", o.immediate},
                                 {"verify", o.verify},
                                 {"seed", o.seed},
                                 {"backend", to_string(o.executor.backend)},
                                 {"threads", o.executor.threads}};
  if (o.verify) json["verify_every"] = o.verify_every;
  return json;
}

nlohmann::ordered_json to_json(const serve::ReplayReport& r) {
  return {{"requests", r.requests},
          {"tokens", r.tokens},
          {"steps", r.steps},
          {"decode_seconds", r.decode_seconds},
          {"wall_seconds", r.wall_seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"step_ms_p50", r.step_ms_p50},
          {"step_ms_p99", r.step_ms_p99},
          {"step_ms_max", r.step_ms_max},
          {"batch_mean", r.batch_mean},
          {"context_mean", r.context_mean},
          {"pool_pages", r.pool_pages},
          {"pool_used_mean", r.pool_used_mean},
          {"pool_used_peak", r.pool_used_peak},
          {"prefix_pages", r.prefix_pages},
          {"prefix_hits", r.prefix_hits},
          {"prefix_hit_rate", r.prefix_hit_rate},
          {"preemptions", r.preemptions},
          {"evictions", r.evictions},
          {"filled_tokens", r.filled_tokens},
          {"recomputed_tokens", r.recomputed_tokens},
          {"verified_rows", r.verified_rows},
          {"verify_worst_ratio", r.verify_worst_ratio},
          {"mismatch", r.mismatch}};
}

void print_report(const ReplayCommand& command, const serve::ReplayReport& r) {
  const serve::ReplayOptions& o = command.replay;
  fmt::print("replay of {}: {} requests, {}, {} layer{}, {} heads, {} cache, on {}\n",
             command.synthetic ? "a synthetic trace" : command.trace, r.requests, command.model, o.layers,
             o.layers == 1 ? "" : "s", o.heads, command.kv, to_string(o.executor.backend));
  auto line = [](const char* name, const std::string& value) { fmt::print("  {:<18}{}\n", name, value); };
  line("throughput", fmt::format("{:.1f} tokens/s ({} tokens in {} steps, {:.2f} s of decoding)",
                                 r.tokens_per_second, r.tokens, r.steps, r.decode_seconds));
  line("step time", fmt::format("{:.3f} ms median, {:.3f} ms p99, {:.3f} ms longest", r.step_ms_p50,
                                r.step_ms_p99, r.step_ms_max));
  line("batch", fmt::format("{:.1f} of {} requests, {:.0f} tokens of context each, on average", r.batch_mean,
                            o.batch, r.context_mean));
  line("pool", fmt::format("{} pages of {} tokens, {:.1f} % held on average, {:.1f} % at most", r.pool_pages,
                           o.page_size, 100 * r.pool_used_mean, 100 * r.pool_used_peak));
  line("prefix hit rate", fmt::format("{:.1f} % ({} of {} prompt pages were there already)",
                                      100 * r.prefix_hit_rate, r.prefix_hits, r.prefix_pages));
  line("preemptions", fmt::format("{} ({} of {} tokens filled were computed again)", r.preemptions,
                                  r.recomputed_tokens, r.filled_tokens));
  line("evictions", fmt::format("{} cached pages", r.evictions));
  line("verified",
       o.verify ? fmt::format("{} rows against the float64 oracle, largest error {:.2f} of what is allowed",
                              r.verified_rows, r.verify_worst_ratio)
                : "no (--verify compares a sample of rows with the float64 oracle)");
  line("wall time",
       fmt::format("{:.1f} s, making latents{} included", r.wall_seconds, o.verify ? " and verifying" : ""));
}

/// Reads "mla" or "gqa:H_Q:H_KV:D".
Status read_model(ReplayCommand& command) {
  serve::ReplayOptions& o = command.replay;
  if (command.model == "mla") return {};
  int end = 0;
  const int numbers =
      std::sscanf(command.model.c_str(), "gqa:%d:%d:%d%n", &o.heads, &o.kv_heads, &o.kv_dim, &end);
  if (numbers != 3 || static_cast<std::size_t>(end) != command.model.size() || o.kv_dim < 1) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("--model is '{}'; expected mla, or gqa:H_Q:H_KV:D such as gqa:32:8:128", command.model)};
  }
  if (command.has_heads) {
    return {StatusCode::kInvalidArgument,
            fmt::format("--heads is for --model mla; --model is '{}', which has its own", command.model)};
  }
  if (command.kv == "bf16" || command.kv == "fp16") return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("--kv is {}, a latent cache's; with --model {} bf16 and fp16 are accepted", command.kv,
                      command.model)};
}

int run_replay(ReplayCommand command) {
  if (const Status status = check_files_differ({{"TRACE", command.trace, false},
                                                {"--write-trace", command.write_trace, true},
                                                {"--json", command.json, true}});
      !status.ok()) {
    return fail(status);
  }
  if (const Status status = read_model(command); !status.ok()) return fail(status);
  command.replay.dtype = command.kv == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  const bool plain = command.kv == "bf16" || command.kv == "fp16";
  command.replay.format = plain ? KvFormat::kPlain : *kv_format_from_name(command.kv);
  const Result<ScalePlace> place = scale_place_of(command.scale_place, command.replay.format, command.kv);
  if (!place.ok()) return fail(place.status());
  command.replay.scales = *place;
  command.replay.prefix_sharing = *prefix_sharing_from_name(command.sharing);
  const Result<Executor> executor = make_executor(command.executor);
  if (!executor.ok()) return fail(executor.status());
  command.replay.executor = *executor;
  const Result<std::vector<io::TraceRequest>> trace = read_trace(command);
  if (!trace.ok()) return fail(trace.status());
  if (!command.write_trace.empty()) {
    const Status written = io::write_mooncake_trace(command.write_trace, *trace);
    if (!written.ok()) return fail(written);
  }

  std::int64_t tokens = 0;
  for (const io::TraceRequest& request : *trace) tokens += request.output_length;
  Result<serve::ReplayReport> report = [&] {
    Progress progress("replay", tokens);
    command.replay.progress = [&](std::int64_t generated) { progress.update(generated); };
    return serve::replay(*trace, command.replay);
  }();
  if (!report.ok()) return fail(report.status());

  if (!report->mismatch.empty()) fmt::print("WRONG {}\n", report->mismatch);
  print_report(command, *report);
  const nlohmann::ordered_json document = {{"machine", describe_machine(*executor)},
                                           {"source_tree", source_tree()},
                                           {"command", command_line()},
                                           {"options", to_json(command)},
                                           {"report", to_json(*report)}};
  if (Status status = write_json(command.json, document); !status.ok()) return fail(status);
  return report->mismatch.empty() ? kRight : kWrongResult;
}

}  // namespace

void add_replay(CLI::App& app, Action& action) {
  CLI::App* replay = app.add_subcommand(
      "replay", "Serve a request trace: page pool, continuous batching, one decode a layer and step");
  auto command = std::make_shared<ReplayCommand>();
  serve::ReplayOptions& options = command->replay;
  replay->add_option("TRACE", command->trace, "A request trace: Mooncake JSONL or Azure CSV");
  replay->add_flag("--synthetic", command->synthetic,
                   "Make a trace up instead: chats that share system prompts");
  replay
      ->add_option("--write-trace", command->write_trace,
                   "Write the requests that are served to this file, as Mooncake JSONL")
      ->check(writable_file());
  replay
      ->add_option("--requests", command->requests,
                   fmt::format("Serve the first so many requests; left out: all, or {} synthetic ones",
                               kSyntheticRequests))
      ->check(CLI::Range(1, kMostRequests));
  replay->add_option("--layers", options.layers, "Layers of the model, each with a cache and a decode a step")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  replay
      ->add_option("--model", command->model,
                   "mla, or gqa:H_Q:H_KV:D: so many query heads, KV heads, elements of a key and of a value")
      ->capture_default_str();
  replay->add_option("--heads", options.heads, "MLA: query heads, which all share one KV head")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  replay->add_option("--batch", options.batch, "Most requests that run at a time")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  replay->add_option("--pool-tokens", options.pool_tokens, "Tokens that each layer's cache has room for")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  replay->add_option("--page-size", options.page_size, "Tokens a page")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  replay->add_option("--kv", command->kv, "Cache format; e4m3 of scale 1")
      ->check(CLI::IsMember(kv_format_names({"bf16", "fp16"})))
      ->capture_default_str();
  add_scale_place(*replay, command->scale_place);
  replay
      ->add_option("--prefix-sharing", command->sharing,
                   "Do requests with the same first pages attend to those by groups? auto: where it pays")
      ->check(CLI::IsMember({"off", "auto", "always"}))
      ->capture_default_str();
  replay->add_flag("--verify", options.verify,
                   "Compare a sample of rows with the float64 oracle, which makes their caches afresh");
  replay->add_option("--verify-every", options.verify_every, "Steps from one sample to the next")
      ->needs("--verify")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  replay->add_flag("--immediate", options.immediate,
                   "Take all requests as there from the start; else each waits for its arrival time");
  add_executor_options(*replay, command->executor);
  add_seed_option(*replay, options.seed);
  add_json_option(*replay, command->json);
  replay->footer(
      "There is no model: queries and cached latents are random, but always the same for a seed, and equal\n"
      "where the trace says that prompts are (hash_ids). Each step gives every running request one more "
      "token.\n"
      "When the pool is full the youngest request is preempted and computed again later; none is lost. Time "
      "is\n"
      "simulated: it advances by what the decode of a step takes, which is all that step time counts.\n"
      "Exit code 1 if a row is wrong; its coordinates and both values are printed.\n"
      "Examples: flashlatent replay --synthetic --verify\n"
      "          flashlatent replay conversation_trace.jsonl --requests 50 --heads 16 --verify --json "
      "replay.json\n"
      "          flashlatent replay conversation_trace.jsonl --requests 50 --model gqa:32:8:128 --verify");
  replay->callback([&action, command, replay] {
    command->has_heads = replay->count("--heads") > 0;
    action = [command] { return run_replay(*command); };
  });
}

}  // namespace flashlatent::tools
