#include "run/shipped.h"

#include <algorithm>
#include <cstdlib>

#include "core/check.h"
#include "json/json_reader.h"
#include "json/text.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& kind) {
  return kind == "configs" ? "configs" : fs::path("configs") / kind;
}

}  // namespace

fs::path program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

// Searches upwards from the program, follows links:
//   build/release/bin/lnbench   the source tree above it, which holds scripts/report and plots
//   <prefix>/bin/lnbench        <prefix>/share/longnet-bench, where `cmake --install` puts them
fs::path data_folder(const fs::path& wanted) {
  if (const char* const home = std::getenv("LONGNET_HOME")) {
    if (fs::exists(home / wanted)) return home;
    throw UsageError("LONGNET_HOME is ", home, ", which holds no ", wanted.string());
  }
  const fs::path program = program_folder();
  for (fs::path at = program; at.has_relative_path(); at = at.parent_path())
    for (const fs::path& folder : {at / "share/longnet-bench", at})
      if (fs::exists(folder / wanted)) return folder;
  throw UsageError("no ", wanted.string(), " in any folder above ", program.string(),
                   "\n  hint: name the source tree in LONGNET_HOME, or install lnbench with "
                   "`cmake --install`");
}

std::vector<ShippedFile> shipped_files(const std::string& kind) {
  std::vector<ShippedFile> files;
  fs::path folder;
  try {
    folder = data_folder(folder_of("clusters")) / folder_of(kind);
  } catch (const UsageError&) {
    return files;
  }
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json") {
      const std::string path = entry.path().string();
      files.push_back({entry.path().stem().string(), path,
                       parse_json(read_file_text(path, ""), path).text("description")});
    }
  std::ranges::sort(files, {}, &ShippedFile::name);
  return files;
}

std::string find_shipped(const std::string& kind, const std::string& given) {
  std::error_code error;
  if (fs::status(given, error).type() != fs::file_type::not_found) return given;
  const std::vector<ShippedFile> files = shipped_files(kind);
  const std::vector<std::string> names = names_of(files);
  if (given.find('/') != std::string::npos || given.ends_with(".json")) {
    const std::string near = closest_match(fs::path(given).stem().string(), names);
    if (near.empty()) return given;  // its reader says what is missing
    throw UsageError("there is no file ", given, "\n  hint: did you mean '", near, "'?");
  }
  std::vector<std::string> beginning;
  fs::path path;  // the last one's
  for (const ShippedFile& file : files) {
    if (file.name == given) return file.path.string();
    if (!file.name.starts_with(given)) continue;
    beginning.push_back(file.name);
    path = file.path;
  }
  if (beginning.size() == 1) return path.string();
  throw UsageError("there is no file ", given, ", and ",
                   beginning.empty() ? "none of the shipped " : "several of the shipped ", kind,
                   beginning.empty() ? " has that name" : " begin so", "\n  hint: ",
                   beginning.empty() ? name_hint(given, names) : "known: " + join(beginning, ", "));
}

}  // namespace longnet
