// `lnbench report`: hands over to scripts/report/make_report.py.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "core/check.h"
#include "lnbench/data_folder.h"
#include "lnbench/options.h"

namespace longnet {
namespace {

// The interpreter with the report's packages: LONGNET_PYTHON, else the environment that
// scripts/python_env.sh makes, else whatever python3 is on the path (the script says what it lacks).
std::string python_for(const std::filesystem::path& data) {
  if (const char* const stated = std::getenv("LONGNET_PYTHON")) return stated;
  const std::filesystem::path own = data / ".venv/bin/python";
  return std::filesystem::exists(own) ? own.string() : "python3";
}

int run_program(std::vector<std::string> args) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child)
    throw Error("cannot start the report script");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    throw UsageError(concat("cannot run '", args[0],
                            "'\n  hint: install Python 3.11 or newer, or "
                            "name it in LONGNET_PYTHON"));
  return WIFEXITED(status) ? WEXITSTATUS(status) : int(kFailed);
}

}  // namespace

int run_report(const Options& options) {
  const std::filesystem::path data = data_folder();
  std::vector<std::string> args{python_for(data),
                                (data / "scripts/report/make_report.py").string()};
  args.insert(args.end(), options.result_dirs.begin(), options.result_dirs.end());
  if (!options.report_file.empty()) args.insert(args.end(), {"-o", options.report_file});
  if (!options.validation.empty()) args.insert(args.end(), {"--validation", options.validation});
  return run_program(std::move(args));
}

}  // namespace longnet
