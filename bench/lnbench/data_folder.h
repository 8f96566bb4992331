// Finds the files that belong to lnbench: searches upwards from the program, follows links.
//
//   build/release/bin/lnbench   the source tree above it, which holds scripts/report and plots
//   <prefix>/bin/lnbench        <prefix>/share/longnet-bench, where `cmake --install` puts them
#pragma once
#include <filesystem>

namespace longnet {

std::filesystem::path program_folder();  // of the running program; "" where the system does not say

// The folder that holds scripts/report; LONGNET_HOME names it for a build outside the source tree.
// Throws UsageError.
std::filesystem::path data_folder();

}  // namespace longnet
