// The commands of lnbench, and the options of each; shell completion and explanations of mistyped
// commands from CLI11's description of them.
#pragma once
#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "lnbench/options.h"

namespace longnet {

struct Command {
  const char* name;
  const char* summary;
  void (*add_options)(CLI::App& command, Options& options);
  int (*run)(const Options&);     // null: of the command line itself
  bool on_all_ranks = false;      // else, under a launcher, only the first rank speaks
  bool lists_algorithms = false;  // at the end of its help
};

std::span<const Command> commands();

// A script for bash: commands, options, words of options, names of shipped files.
std::string bash_completion(const CLI::App& app);
// "there is no command 'rnu'", with the hint "did you mean 'run'?".
std::string explain_mistake(CLI::App& app, const CLI::ParseError& error, int argc, char** argv);
// The commands, one line each.
std::string command_list(const CLI::App& app);

}  // namespace longnet
