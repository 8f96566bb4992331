// lnbench, one program for the whole study: its command line. The commands are in command_*.cpp,
// their options in commands.cpp.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "comm/host_transport.h"
#include "core/check.h"
#include "json/text.h"
#include "lnbench/commands.h"
#include "run/shipped.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

std::string algorithm_list() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const AlgorithmInfo& a : algorithms()) rows.emplace_back(a.name, a.summary);
  return "Algorithms:\n" + two_columns(rows);
}

constexpr const char* kNotes =
    "Token counts are integers or K, M, B (2^10, 2^20, 2^30).\n"
    "Exit codes: 0 ok, 1 a point failed or was wrong, or there is none, 2 usage or config,\n"
    "            3 machine not usable, 4 stopped early (resumable), 5 regression.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lnbench plan configs/quick.json\n"
    "  mpirun -np 2 lnbench run configs/quick.json --filter 'seq_len<=64K'\n"
    "  lnbench run configs/quick.json --ranks 4 --set sweep.ranks=1,2,4\n"
    "  lnbench simulate configs/figure5-cluster.json --cluster configs/clusters/h100-ndr400.json\n"
    "  lnbench recommend --cluster configs/clusters/h100-ndr400.json --seq-len 16M --ranks 64\n"
    "  lnbench report results/20260101T000000Z-quick-abc1234";

// Descriptions on lines of 100 characters in all.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), width());
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_display_name(true),
                             wrapped(command->get_description(), width()), get_column_width());
    return out.str();
  }

 private:
  size_t width() const { return 100 - get_column_width(); }
};

// As a user would type it again.
std::string command_line_text(int argc, char** argv) {
  std::string text;
  for (int i = 0; i < argc; ++i) text += concat(i > 0 ? " " : "", shell_word(argv[i]));
  const HostTransport* transport = launched_transport();
  return transport ? concat(launcher_words(transport, transport->launch()->ranks), " ", text)
                   : text;
}

int dispatch(int argc, char** argv) {
  Options o;
  o.command_line = command_line_text(argc, argv);
  CLI::App app{"LongNet-Bench: dilated and exact distributed attention, measured and checked.",
               "lnbench"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kNotes);  // below the help of every command
  app.require_subcommand(1);
  const BuildInfo build = build_info();
  app.set_version_flag("--version", concat("lnbench ", build.version, " (", build.revision, ")"));
  for (const Command& command : commands()) {
    CLI::App& added = *app.add_subcommand(command.name, command.summary);
    command.add_options(added, o);
    if (command.lists_algorithms) added.footer(concat(algorithm_list(), "\n", kNotes));
  }
  app.footer(concat(algorithm_list(), "\n", kNotes, "\n", kExamples));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (launched_rank() != 0) return e.get_exit_code() == 0 ? kOk : kUsage;
    if (e.get_exit_code() != 0) throw UsageError(explain_mistake(app, e, argc, argv));
    return app.exit(e) == 0 ? kOk : kUsage;
  }
  if (!o.config.empty()) o.config = find_shipped("configs", o.config);
  if (app.got_subcommand("completion")) {
    std::cout << bash_completion(app);
    return kOk;
  }
  for (const Command& command : commands())
    if (app.got_subcommand(command.name))
      return command.on_all_ranks || launched_rank() == 0 ? command.run(o) : int(kOk);
  throw Error("no command was given");  // the parser requires one
}

// A file opened later must not get the number of a stream that the caller has closed: what is
// printed would go into it.
void open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

int run_command(int argc, char** argv) {
  try {
    return dispatch(argc, argv);
  } catch (const UsageError& e) {
    if (launched_rank() == 0) std::cerr << "error: " << printable(e.what()) << "\n";
    return kUsage;
  } catch (const std::filesystem::filesystem_error& e) {
    std::cerr << "error: " << printable(e.what()) << "\n";
    return kUsage;
  } catch (const std::exception& e) {
    std::cerr << "error: rank " << launched_rank() << ": " << printable(e.what()) << "\n";
    return kUnusable;
  }
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) {
  using namespace longnet;
  open_standard_streams();
  int code = run_command(argc, argv);
  if (!std::cout.flush()) {
    std::cerr << "error: standard output could not be written (is the disk full?)\n";
    if (code == kOk) code = kUnusable;
  }
  // Under a launcher other ranks may be waiting for this one. MPI was left unfinalised (see
  // ~MpiWorld in mpi_world.cpp), so that the launcher ends them, with this exit code.
  std::cerr << std::flush;
  if (launched()) std::_Exit(code);
  return code;
}
