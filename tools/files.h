// The files that a subcommand reads and writes.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "flashlatent/status.h"

namespace flashlatent::tools {

/// Checks an option that names a file: can it be written now? Called before the work whose result goes there.
CLI::Validator writable_file();

struct NamedFile {
  const char* option;  ///< "CASE", "--output".
  const std::string& path;
  bool written;
};
/// Refuses to write a file that is read or written under another option, by whatever path. Empty paths and
/// "-" do not count.
Status check_files_differ(std::initializer_list<NamedFile> files);

/// Adds --json. "-" is stdout, which then has nothing else.
void add_json_option(CLI::App& app, std::string& path);
/// With --json -, sends to stderr what would otherwise go to stdout.
void keep_stdout_for_json(const CLI::App& app);
/// JSON with a line for each field of `document`, and one for each member of a field whose members are lists
/// or objects: a case of `results` is one line.
std::string a_case_a_line(const nlohmann::ordered_json& document);
/// Writes `document` to `path`, a case a line; does nothing if the path is empty.
Status write_json(const std::string& path, const nlohmann::ordered_json& document);

/// Flushes stdout; an error if it could not all be written (a full disk).
Status finish_stdout();

}  // namespace flashlatent::tools
