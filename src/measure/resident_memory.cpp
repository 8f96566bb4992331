#include "measure/resident_memory.h"

#include <fstream>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace longnet {
namespace {

// A line of /proc/self/status, e.g. "VmHWM:    81920 kB", in bytes.
std::optional<int64_t> status_line(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return 1024 * std::stoll(line.substr(key.size() + 1));
  return {};
}

}  // namespace

std::optional<int64_t> resident_bytes() { return status_line("VmRSS"); }
std::optional<int64_t> peak_resident_bytes() { return status_line("VmHWM"); }

ResidentGrowth::ResidentGrowth() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  std::ofstream forget("/proc/self/clear_refs");
  if (forget << "5" << std::flush) before_ = resident_bytes();  // proc(5): resets VmHWM
}

std::optional<int64_t> ResidentGrowth::bytes() const {
  const std::optional<int64_t> peak = peak_resident_bytes();
  if (!before_ || !peak) return {};
  return *peak - *before_;
}

}  // namespace longnet
