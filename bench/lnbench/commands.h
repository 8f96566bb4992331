// The commands of lnbench, and the options of each.
#pragma once
#include <CLI/CLI.hpp>
#include <span>

#include "lnbench/options.h"

namespace longnet {

struct Command {
  const char* name;
  const char* summary;
  void (*add_options)(CLI::App& command, Options& options);
  int (*run)(const Options&);  // null: of the command line itself
  bool on_all_ranks = false;   // else, under a launcher, only the first rank speaks
};

std::span<const Command> commands();

}  // namespace longnet
