// Shell completion and explanations of mistyped commands, from CLI11's description of the command
// line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace longnet {

// A script for bash: commands, options, words of options, names of shipped files.
std::string bash_completion(const CLI::App& app);
// "there is no command 'rnu'; did you mean 'run'?"; "" where CLI11's own words are best.
std::string explain_mistake(CLI::App& app, const CLI::ParseError& error, int argc, char** argv);
// The commands, one line each.
std::string command_list(const CLI::App& app);

}  // namespace longnet
