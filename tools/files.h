// Files that a subcommand reads and writes.
#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "flashlatent/status.h"

namespace flashlatent::tools {

/// Of an option that names a file: can it be written now? Asked before work whose result goes there.
CLI::Validator writable_file();

struct NamedFile {
  const char* option;  ///< "CASE", "--output".
  const std::string& path;
  bool written;
};
/// Refuses to write a file that is read, or written, under another option, by whatever path. Empty paths and
/// "-" are none.
Status check_files_differ(std::initializer_list<NamedFile> files);

/// "-" is stdout, on which nothing else stands then.
void add_json_option(CLI::App& app, std::string& path);
/// If the command line says --json -: what else goes to stdout from now on goes to stderr.
void keep_stdout_for_json(const CLI::App& app);
/// Writes `document` to `path`; nothing if the path is empty.
Status write_json(const std::string& path, const nlohmann::ordered_json& document);

/// Writes what is left of stdout; an error if it could not all be written (a full disk).
Status finish_stdout();

}  // namespace flashlatent::tools
