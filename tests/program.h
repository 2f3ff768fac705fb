// The program as its users run it, for tests: what it prints, what it writes, its exit code.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "io_files.h"

namespace flashlatent::io {

struct Outcome {
  int code = -1;  // exit code; 128 + signal if a signal ended it
  std::string out, err;
};

class Program : public testing::Test {
 protected:
  /// Runs `flashlatent ARGUMENTS` through the shell, on the CPU. Sleeping threads are kind to a busy machine.
  Outcome run(const std::string& arguments) const {
    const std::string command = "FLASHLATENT_BACKEND=cpu OMP_WAIT_POLICY=passive '" FLASHLATENT_PROGRAM "' " +
                                arguments + " >" + file("stdout") + " 2>" + file("stderr");
    const int status = std::system(command.c_str());
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.out = read_bytes(file("stdout"));
    outcome.err = read_bytes(file("stderr"));
    return outcome;
  }

  /// Exit code 2, nothing on stdout, and one line on stderr that holds the pieces.
  void expect_refused(const std::string& arguments, const std::vector<std::string>& pieces) const {
    SCOPED_TRACE(arguments);
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("flashlatent: ")) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
    for (const std::string& piece : pieces) {
      EXPECT_NE(outcome.err.find(piece), std::string::npos) << outcome.err << "lacks: " << piece;
    }
  }

  void expect_right(const std::string& arguments, const std::vector<std::string>& pieces = {}) const {
    SCOPED_TRACE(arguments);
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    for (const std::string& piece : pieces) {
      EXPECT_NE(outcome.out.find(piece), std::string::npos) << outcome.out << "lacks: " << piece;
    }
  }

  std::string file(const char* name) const { return directory_.path(name); }
  std::string write(const char* name, std::string_view bytes) const { return directory_.write(name, bytes); }
  nlohmann::json json(const char* name) const { return nlohmann::json::parse(read_bytes(file(name))); }

  /// A copy of case `from` whose tensor has one fp32 element changed.
  std::string change(const std::string& from, const char* tensor, std::size_t element, float value) const {
    const auto loaded = SafetensorsFile::read(from);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    const ConstTensorView view = loaded->tensor(tensor);
    const auto* begin = static_cast<const float*>(view.data);
    std::vector<float> values(begin, begin + view.elements());
    values.at(element) = value;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, original] : loaded->tensors()) {
      tensors.push_back({name, original});
      if (name == tensor) tensors.back().view.data = values.data();
    }
    const std::string to = file("changed.safetensors");
    const Status written = write_safetensors(to, tensors, loaded->metadata());
    EXPECT_TRUE(written.ok()) << written.message();
    return to;
  }

  TempDir directory_;
};

}  // namespace flashlatent::io
