#include "io/point.h"

namespace longnet {

std::string_view to_string(PointStatus s) {
  switch (s) {
    case PointStatus::kOk:
      return "ok";
    case PointStatus::kSkippedMemory:
      return "skipped_memory";
    case PointStatus::kSkippedExcluded:
      return "skipped_excluded";
    case PointStatus::kSkippedUnsupported:
      return "skipped_unsupported";
    case PointStatus::kOom:
      return "oom";
    case PointStatus::kTimeout:
      return "timeout";
    case PointStatus::kCheckFailed:
      return "check_failed";
    case PointStatus::kError:
      return "error";
  }
  return "error";
}

std::string_view to_string(Mode m) {
  switch (m) {
    case Mode::kReal:
      return "real";
    case Mode::kVirtual:
      return "virtual";
    case Mode::kSimulated:
      return "simulated";
  }
  return "?";
}

}  // namespace longnet
