// What the program refuses, and how it speaks to terminals, pipes and scripts.
#include <pty.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program.h"

namespace flashlatent::io {
namespace {

TEST_F(Program, RefusesWrongUsage) {
  expect_refused("", {"subcommand"});
  expect_refused("fly", {"fly"});
  expect_refused("decode", {"CASE"});
  expect_refused("decode case --fast", {"--fast"});
  expect_refused("decode case --backend tpu", {"--backend", "tpu"});
  expect_refused("check --suite huge", {"--suite", "huge"});
  expect_refused("check --filter zzz", {"--filter", "zzz"});
  expect_refused("check --suite full --json " + file("none") + "/x.json",
                 {"--json", "none/x.json", "cannot be written"});
  expect_refused("bench plan --json " + file("."), {"--json", "is a directory"});
  expect_refused("decode none -o " + file("none") + "/x", {"--output", "none/x", "cannot be written"});
  expect_refused("plan --svg " + file("none") + "/x.svg", {"--svg", "none/x.svg", "cannot be written"});
  for (const char* shard : {"0/2", "3/2", "2", "1/2x", "1/0"}) {
    expect_refused(std::string("check --shard ") + shard, {"--shard is", shard, "I from 1 to N"});
  }
  expect_refused("check --suite small --shard 1/1000", {"--shard is '1/1000'", "cases"});
  expect_refused("check --suite small --cases 5", {"--cases is 5", "small", "random"});
  // A kernel that does not exist would refuse every case, and none would be wrong.
  for (const char* command : {"check --suite small", "bench dense --suite small"}) {
    expect_refused(std::string(command) + " --backend cpu --kernel fast", {"kernel is 'fast'", "cpu_dense"});
  }
  expect_refused("replay --synthetic --heads 0", {"--heads", "0"});
  expect_refused("make-case " + file("c") + " --dims 3/5", {"--dims", "3/5"});
  expect_refused("make-case " + file("c") + " --heads 3 --kv-heads 2", {"--heads is 3"});
  expect_refused("make-case " + file("c") + " --kv fp8_656 --dtype fp16", {"dtype is fp16", "bf16"});
  expect_refused("make-case " + file("c") + " --topk 5 --topk-lengths 1,2,3,9",
                 {"--topk-lengths has 9", "5"});
  expect_refused("make-case " + file("c") + " --skipped-indices 0.5", {"--topk"});
  expect_refused("make-case " + file("no/such/folder"), {"no/such/folder"});
}

TEST_F(Program, SuggestsWhatWasMeant) {
  for (const auto& [typed, meant] : {std::pair{"chekc", "'check'"},
                                     {"make_case x", "'make-case'"},
                                     {"benchmark", "'bench'"},
                                     {"bench dens", "'dense'"},
                                     {"--verison", "'--version'"},
                                     {"decode x --jsn y", "'--json'"},
                                     {"decode x --backend cpu --thread=2", "'--threads'"}}) {
    expect_refused(typed, {"did you mean " + std::string(meant) + "?"});
  }
  expect_refused("fly", {"'fly' is no subcommand of flashlatent; info, decode"});
  EXPECT_EQ(run("decode case --fast").err.find("did you mean"), std::string::npos);
}

// Each option is named; none does nothing.
TEST_F(Program, RefusesWhatItWouldIgnore) {
  const std::string c = file("c");
  expect_refused("check --suite small --backend cpu --device 1", {"--device is 1", "--backend cuda"});
  expect_refused("bench plan --backend cpu --device 0", {"--device is 0", "--backend cuda"});
  expect_refused("bench dense --suite small --backend cpu --graph", {"--graph", "--backend cuda"});
  expect_refused("bench cache --backend cpu --graph", {"--graph", "--backend cuda"});
  expect_refused("plan --length-list 5,6 --batch 2", {"--batch", "--length-list"});
  expect_refused("bench dense --length-list 5,6 --tokens 2", {"--tokens", "--length-list"});
  expect_refused("bench dense --suite small --batch 2", {"--batch", "--suite"});
  expect_refused("bench sparse --suite small --topk 2", {"--topk", "--suite"});
  expect_refused("bench paged --suite small --kv e4m3", {"--kv", "--suite"});
  expect_refused("plan --prefix-sharing off", {"--prefix-sharing", "--shared-tokens"});
  expect_refused("replay --synthetic --verify-every 3", {"--verify-every", "--verify"});
  expect_refused("replay --synthetic --model gqa:6:2:64 --heads 6", {"--heads", "gqa:6:2:64"});
  expect_refused("make-case " + c + " --ragged 1,2,0,1 --query-tokens 3", {"--ragged", "--query-tokens"});
  const std::string prefill = "make-case " + c + " --topk 9 --prefill ";
  expect_refused(prefill + "rows --page-size 7", {"--page-size is 7", "--prefill is rows"});
  for (const char* list : {"1,,2", ",1", "1,", "1,x", "1, 2", "[1,,2]", "-1", "99999999999"}) {
    expect_refused("make-case " + c + " --lengths '" + list + "'",
                   {"--lengths: item", "separated by commas"});
    expect_refused(std::string("plan --length-list '") + list + "'", {"--length-list: item"});
    expect_refused(std::string("bench plan --batch '") + list + "'", {"--batch: item"});
  }
  for (const char* seed : {"1.5", "x"}) {
    expect_refused(std::string("check --list --seed ") + seed,
                   {"--seed: '" + std::string(seed), "whole number"});
  }
  for (const char* seed : {"-1", "9223372036854775808"}) {
    expect_refused(std::string("check --list --seed ") + seed,
                   {"--seed: " + std::string(seed), "0 to 2^63 - 1"});
  }
  expect_right("check --list --suite small --seed 9223372036854775807");
}

TEST_F(Program, TuneNeedsAGpuAndListsWithout) {
  const std::string costs = file("x.costs");
  // There is no such GPU anywhere.
  expect_refused("tune --device 1000 --costs " + costs,
                 {"tune measures on a GPU", "`flashlatent tune --list`"});
  EXPECT_FALSE(std::filesystem::exists(costs));
  expect_refused("tune --device 1000 --json -", {"--json is -", "--costs FILE"});
  expect_refused("tune --costs " + costs + " --json " + costs, {"--json is", "the same file as --costs"});
  expect_refused("tune --list --costs " + costs, {"--list", "--costs"});
  expect_refused("tune --gpu H20", {"--gpu", "--list"});
  expect_refused("tune --list --gpu H9", {"--gpu is 'H9'", "H200"});
  expect_refused("tune --list --filter zzz", {"--filter 'zzz'", "flashlatent info"});
  const std::string times = testing::TempDir() + "tune_times.json";
  const auto write = [&](const std::string& text) { std::ofstream(times) << text; };
  expect_refused("tune --times /nowhere/times.json", {"/nowhere/times.json"});
  write("[");
  expect_refused("tune --times " + times, {times, "is no JSON", "`flashlatent tune --json` writes"});
  write(R"({"results": []})");
  expect_refused("tune --times " + times, {times, "names no gpu"});
  write(R"({"gpu": "H9", "results": []})");
  expect_refused("tune --times " + times, {"the gpu of " + times + " is 'H9'", "H200"});
  write(R"({"gpu": "H200", "results": [{"name": "a", "ms": -1}]})");
  expect_refused("tune --times " + times, {times, "result 0 has no name and positive ms"});
  write(R"({"gpu": "H200", "results": [{"name": "a", "ms": 1}]})");
  expect_refused("tune --times " + times, {times, "has no time of a call", "--list"});
  expect_refused("tune --seconds 9 --times " + times, {"--times", "--seconds"});
  write(
      R"({"gpu": "H200", "results": [{"name": "latent b128 s_q1 h16 s_k4096 uniform by mla_16", "ms": 0.15}]})");
  expect_right("tune --times " + times, {"gpu H200"});
  std::filesystem::remove(times);
  expect_refused("tune --seconds 0", {"--seconds", "0"});
  expect_right("tune --list --filter mla_16 --gpu H20",
               {"latent b1 s_q1 h16 s_k1024 uniform by mla_16", "constants", "on H20",
                "  plan packing per_call, per_member\n"});
}

TEST_F(Program, RefusesWhatMemoryCannotHold) {
  for (const std::string& command :
       {"make-case " + file("c") + " --lengths 16777216 --batch 4000",
        "make-case " + file("c") + " --lengths 16777216 --batch 4000 --topk 5 --kv fp8_656",
        "make-case " + file("c") + " --lengths 16777216 --batch 4000 --layout packed --dims 128/128",
        std::string("bench dense --batch 100000 --tokens 1000000"),
        std::string("bench dense --batch 100000 --tokens 1000000 --kv fp8_656"),
        std::string("bench sparse --batch 1000 --tokens 100000000 --topk 100000000"),
        std::string("bench paged --batch 100000 --tokens 1000000"),
        std::string("bench numerics --batch 1024 --tokens 1048576"),
        std::string("plan --batch 1000000 --tokens 1073741824 --shared-tokens 64")}) {
    expect_refused(command + (command.starts_with("bench") ? " --backend cpu" : ""),
                   {"GiB of memory; this machine has"});
  }
  expect_refused("bench dense --batch 100000 --tokens 1000000 --heads 1 --qk-dim 1 --v-dim 1 --page-size 1",
                 {"pages of 1 tokens; at most 2147483647"});
}

TEST_F(Program, JsonToStdoutStandsAlone) {
  for (const char* command :
       {"info", "plan --kernel cpu_dense --batch 3", "bench plan --batch 2 --backend cpu",
        "check --suite small --shard 1/20 --backend cpu",
        "bench dense --suite small --repeats 2 --backend cpu",
        "replay --synthetic --requests 1 --heads 1 --backend cpu"}) {
    const Outcome outcome = run(std::string(command) + " --json -");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(nlohmann::json::accept(outcome.out)) << command << "\n" << outcome.out;
    EXPECT_FALSE(outcome.err.empty()) << command;
  }
  expect_refused("plan --svg -", {"--svg", "only --json writes to stdout"});
}

TEST_F(Program, AClosedPipeEndsQuietly) {
  // Also where a parent has SIGPIPE ignored.
  for (const char* trap : {"", "trap \"\" PIPE; "}) {
    const std::string command = std::string(trap) +
                                "{ '" FLASHLATENT_PROGRAM "' check --suite full --list 2>" + file("stderr") +
                                "; echo $? >" + file("code") + "; } | true";
    std::ignore =
        std::system(("sh -c '" + std::regex_replace(command, std::regex("'"), "'\\''") + "'").c_str());
    EXPECT_EQ(read_bytes(file("stderr")), "") << trap;
    EXPECT_EQ(read_bytes(file("code")), "141\n") << trap;
  }
  if (std::filesystem::exists("/dev/full")) {
    const int status = std::system(("'" FLASHLATENT_PROGRAM "' info >/dev/full 2>" + file("stderr")).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 2);
    EXPECT_NE(read_bytes(file("stderr")).find("stdout cannot be written"), std::string::npos);
  }
}

// What cannot be said on stderr is lost; exit codes and results stay. No file takes a closed stream's number.
TEST_F(Program, WithoutStderrExitCodesStay) {
  ASSERT_EQ(run("make-case " + file("case") + " --lengths 3 --heads 2").code, 0);
  auto code_of = [&](const std::string& rest) {
    const int status = std::system(("FLASHLATENT_BACKEND=cpu '" FLASHLATENT_PROGRAM "' " + rest).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  std::vector<std::string> ends = {" 2>&-"};
  if (std::filesystem::exists("/dev/full")) ends.emplace_back(" 2>/dev/full");
  for (const std::string& end : ends) {
    EXPECT_EQ(code_of("decode " + file("none") + " >" + file("stdout") + end), 2) << end;
    EXPECT_EQ(code_of("decoder >" + file("stdout") + end), 2) << end;
    EXPECT_EQ(code_of("decode " + file("case") + " >" + file("stdout") + end), 0) << end;
    EXPECT_NE(read_bytes(file("stdout")).find("rows right"), std::string::npos) << end;
  }
  EXPECT_EQ(code_of("decode " + file("case") + " -o " + file("result") + " <&- >&- 2>&-"), 2);
  EXPECT_NE(read_bytes(file("result")).find("lse"), std::string::npos);
  EXPECT_EQ(read_bytes(file("result")).find("rows right"), std::string::npos);
  if (ends.size() > 1) {
    EXPECT_EQ(code_of("--help >/dev/full 2>" + file("stderr")), 2);
    EXPECT_NE(read_bytes(file("stderr")).find("stdout cannot be written"), std::string::npos);
  }
}

TEST_F(Program, ThreadsOfTheEnvironmentAreBounded) {
  const std::string command = "OMP_NUM_THREADS=100000 '" FLASHLATENT_PROGRAM "' info --json ";
  ASSERT_EQ(std::system((command + file("json") + " >" + file("stdout")).c_str()), 0);
  EXPECT_EQ(json("json")["backends"]["cpu"]["devices"][0]["units"], 4096);
}

TEST_F(Program, NumbersThatAreNoneAndEmptyNamesAreRefused) {
  expect_refused("make-case " + file("case") + " --topk 3 --skipped-indices nan",
                 {"--skipped-indices: nan", "from 0 to 1"});
  expect_refused("make-case " + file("case") + " --logit-scale nan", {"--logit-scale: nan"});
  expect_refused("make-case " + file("case") + " --layout separate --soft-cap nan", {"--soft-cap: nan"});
  expect_refused("bench dense --batch 1 --tokens 4 --heads 1 --deviation nan", {"--deviation: nan"});
  expect_refused("bench numerics --scores nan", {"--scores: nan"});
  expect_refused("make-case ''", {"OUT: '': is no file's name"});
  expect_refused("decode ''", {"'': is no file's name"});
  for (const char* command :
       {"decode x", "check --suite small", "bench dense --suite small", "plan", "replay --synthetic"}) {
    expect_refused(std::string(command) + " --kernel ''",
                   {"--kernel: '' is no kernel's name", "leave the option out"});
  }
  expect_refused("plan --gpu ''", {"--gpu: '' is no GPU's name"});
  ASSERT_EQ(run("make-case " + file("case") + " --prefill rows --topk 2 --lengths 3 --heads 2").code, 0);
  expect_refused("decode " + file("case") + " -o ''", {"--output: '': is no file's name"});
  expect_refused("decode " + file("case") + " --json ''", {"--json: '': is no file's name"});
  expect_refused("decode " + file("case") + " --prefix-sharing always",
                 {"--prefix-sharing is always", "prefill"});
  expect_refused("make-case " + file("case") + " --kv fp8_656 --scale-place page",
                 {"--scale-place is page; it is for --kv mxfp8_528 and nvfp4_288, and --kv is fp8_656"});
  expect_refused("replay --synthetic --scale-place token", {"--scale-place is token", "--kv is bf16"});
  expect_refused("make-index-case " + file("case") + " --candidate-block 4",
                 {"--candidate-block is 4; it is for --candidates and --best-blocks"});
  ASSERT_EQ(run("make-index-case " + file("case") + " --lengths 3 --topk 2").code, 0);
  expect_refused("decode " + file("case") + " --prefix-sharing always",
                 {"--prefix-sharing is always", "index_topk"});
  expect_refused("decode " + file("case") + " --kernel mla_16 --backend cpu",
                 {"kernel is 'mla_16', which does not choose index keys; index_topk and reference do"});
  EXPECT_EQ(run("decode " + file("case") + " --kernel index_topk --backend cpu").code, 0);
  expect_refused("make-case " + file("case") + " --lengths 3 --extra-lengths 1,2",
                 {"--extra-lengths has 2 numbers, but there are 1 requests"});
}

// Runs in a terminal of so many columns; the longest line that the bar draws.
std::size_t widest_progress(unsigned short columns, const char* environment) {
  winsize size{24, columns, 0, 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    const std::string command = std::string(environment) +
                                " OMP_WAIT_POLICY=passive '" FLASHLATENT_PROGRAM
                                "' check --suite small --shard 1/10 --backend cpu >/dev/null";
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(terminal, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), got);
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0) << text;
  EXPECT_NE(text.find("100 %"), std::string::npos) << text;
  text = std::regex_replace(text, std::regex("\033\\[K"), "");
  std::size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, '\r');) widest = std::max(widest, line.size());
  return widest;
}

TEST_F(Program, ProgressFitsTheTerminal) {
  EXPECT_GT(widest_progress(100, "unset COLUMNS;"), 45U);
  EXPECT_LT(widest_progress(36, "unset COLUMNS;"), 36U);
  EXPECT_LT(widest_progress(12, "unset COLUMNS;"), 12U);
  EXPECT_LT(widest_progress(100, "COLUMNS=30"), 30U);
}

TEST_F(Program, WritesNoFileThatItReads) {
  const std::string path = file("case.safetensors");
  expect_right("make-case " + path + " --lengths 70 --heads 4");
  std::filesystem::create_symlink(path, file("link"));
  std::filesystem::create_hard_link(path, file("hard"));
  const std::string before = read_bytes(path);
  for (const std::string& other : {path, file("link"), file("hard"), file(".") + "/case.safetensors"}) {
    expect_refused("decode " + path + " -o " + other, {"--output is '" + other, "CASE"});
    expect_refused("decode " + path + " --json " + other, {"--json is '" + other, "CASE"});
  }
  EXPECT_EQ(read_bytes(path), before);
  expect_refused("decode " + path + " -o " + file("new") + " --json " + file(".") + "/new",
                 {"--json", "--output"});
  expect_refused("plan --svg " + file("new") + " --json " + file("new"), {"--json", "--svg"});
  const std::string trace =
      write("trace.jsonl", R"({"timestamp": 0, "input_length": 5, "output_length": 1})");
  expect_refused("replay " + trace + " --write-trace " + trace, {"--write-trace", "TRACE"});
  EXPECT_FALSE(std::filesystem::exists(file("new")));
}

}  // namespace
}  // namespace flashlatent::io
