// `lnbench report`: hands over to scripts/report/make_report.py, in the project's own virtual
// environment.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "lnbench/options.h"

namespace longnet {

int run_report(const Options& options) {
  namespace fs = std::filesystem;
  const char* const home = std::getenv("LONGNET_HOME");
  const fs::path root = home != nullptr ? home : LONGNET_SOURCE_DIR;
  const fs::path python = root / ".venv/bin/python",
                 script = root / "scripts/report/make_report.py";
  if (!fs::exists(script))
    throw UsageError(
        concat("cannot find ", script.string(), "; set LONGNET_HOME to the project's folder"));
  if (!fs::exists(python))
    throw UsageError(
        concat("cannot find ", python.string(), "; run scripts/python_env.sh, which makes it"));
  std::vector<std::string> args{python.string(), script.string()};
  args.insert(args.end(), options.result_dirs.begin(), options.result_dirs.end());
  if (!options.report_file.empty()) args.insert(args.end(), {"-o", options.report_file});
  if (!options.validation.empty()) args.insert(args.end(), {"--validation", options.validation});
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child)
    throw Error("cannot start the report script");
  return WIFEXITED(status) ? WEXITSTATUS(status) : int(kFailed);
}

}  // namespace longnet
