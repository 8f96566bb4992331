// Prefetches of strided rows, which hardware prefetchers do not follow.
#pragma once
#include <cstdint>

#include "hwy/cache_control.h"

namespace longnet {

inline constexpr int64_t kRowsAhead = 16;  // this far ahead hides the latency of memory

inline void prefetch_row(const void* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(static_cast<const char*>(row) + at);
}

}  // namespace longnet
