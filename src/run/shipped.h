// Files that come with the program: configs, clusters, the report's scripts; found by name.
//
//   find_shipped("clusters", "h100")  ->  ".../configs/clusters/h100-ndr400.json"
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace longnet {

std::filesystem::path program_folder();  // the running program's; "" where it is not known

// The folder that holds `wanted`, a path such as "scripts/report/make_report.py"; LONGNET_HOME
// names it for a build outside the source tree. Throws UsageError.
std::filesystem::path data_folder(const std::filesystem::path& wanted);

struct ShippedFile {
  std::string name;  // without ".json"
  std::filesystem::path path;
  std::string about;  // its "description"
};
// `kind`: "configs" or "clusters". By name; empty where the program stands alone.
std::vector<ShippedFile> shipped_files(const std::string& kind);

// A path as given; of a bare word that is no file, the shipped file of that name, or the only one
// whose name begins with it. Throws UsageError that lists the names, or has the one near to the
// name of a missing file.
std::string find_shipped(const std::string& kind, const std::string& given);

}  // namespace longnet
