#include "lnbench/data_folder.h"

#include <cstdlib>

#include "core/check.h"

namespace longnet {

namespace fs = std::filesystem;

fs::path program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

fs::path data_folder() {
  const fs::path wanted = "scripts/report/make_report.py";
  if (const char* const home = std::getenv("LONGNET_HOME")) {
    if (fs::exists(home / wanted)) return home;
    throw UsageError(concat("LONGNET_HOME is ", home, ", which holds no ", wanted.string()));
  }
  const fs::path program = program_folder();
  for (fs::path at = program; at.has_relative_path(); at = at.parent_path())
    for (const fs::path& folder : {at / "share/longnet-bench", at})
      if (fs::exists(folder / wanted)) return folder;
  throw UsageError(concat("no ", wanted.string(), " in any folder above ", program.string(),
                          "\n  hint: name the source tree in LONGNET_HOME, or install lnbench with "
                          "`cmake --install`"));
}

}  // namespace longnet
