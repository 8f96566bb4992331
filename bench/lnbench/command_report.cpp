// `lnbench report`: hands over to scripts/report/make_report.py.
#include <unistd.h>

#include <cstdlib>

#include "core/check.h"
#include "io/compare.h"
#include "io/units.h"
#include "lnbench/terminal.h"
#include "run/shipped.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

// The interpreter with the report's packages: LONGNET_PYTHON, else the environment that
// scripts/python_env.sh makes, else whatever python3 is on the path (the script says what it
// lacks).
std::string python_for(const fs::path& data) {
  if (const char* const stated = std::getenv("LONGNET_PYTHON")) return stated;
  const fs::path own = data / ".venv/bin/python";
  return fs::exists(own) ? own.string() : "python3";
}

[[noreturn]] void become(std::vector<std::string> args) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  throw UsageError("cannot run '", args[0],
                   "'\n  hint: install Python 3.11 or newer, or name it in LONGNET_PYTHON");
}

// Writes the verdicts on two results beside the report, for the script to show.
fs::path write_comparison(const Options& options) {
  if (options.result_dirs.size() != 2)
    throw UsageError("--compare takes two result folders, not ", options.result_dirs.size());
  const fs::path folder = options.report_file.empty()
                              ? fs::path(options.result_dirs[0]) / "together"
                              : fs::path(options.report_file).parent_path();
  const fs::path file = folder / "comparison.json";
  if (!folder.empty()) fs::create_directories(folder);
  const Comparison comparison =
      compare_results(read_result(options.result_dirs[0]), read_result(options.result_dirs[1]),
                      {.threshold = parse_fraction(options.threshold)});
  write_file(file, dump_json(comparison_json(comparison), 1) + "\n");
  return file;
}

}  // namespace

int run_report(const Options& options) {
  if (options.result_dirs.empty() && options.validation.empty())
    throw UsageError(
        "nothing to report on\n  hint: name a result folder, or a --validation (lnbench validate "
        "--published --json)");
  const fs::path script = "scripts/report/make_report.py", data = data_folder(script);
  std::vector<std::string> args{python_for(data), (data / script).string()};
  args.insert(args.end(), options.result_dirs.begin(), options.result_dirs.end());
  if (!options.report_file.empty()) args.insert(args.end(), {"-o", options.report_file});
  if (!options.validation.empty()) args.insert(args.end(), {"--validation", options.validation});
  if (options.report_compares)
    args.insert(args.end(), {"--comparison", write_comparison(options).string()});
  become(std::move(args));
}

}  // namespace longnet
