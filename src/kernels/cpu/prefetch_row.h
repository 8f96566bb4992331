// Prefetches of strided rows, which hardware prefetchers do not follow.
#pragma once
#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/attention_kernel.h"

namespace longnet {

inline constexpr int64_t kRowsAhead = 16;  // this far ahead hides the latency of memory

inline void prefetch_row(const void* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(static_cast<const char*>(row) + at);
}

inline void prefetch_row(const PartialRun& run, int64_t row, int64_t head_dim) {
  prefetch_row(run.o + row * run.o_stride, head_dim * int64_t(sizeof(float)));
  hwy::Prefetch(run.lse + row * run.lse_stride);
}

}  // namespace longnet
