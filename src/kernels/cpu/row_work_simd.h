// Generator, digests and sums of one run of rows on one core (see kernels/row_worker.h).
#pragma once
#include <cstdint>

#include "kernels/row_worker.h"

namespace longnet {

inline constexpr int64_t kMaxRowWords = 128;  // 64-bit words of the longest row, 256 fp32

void fill_rows(const FillRows& task, const RowFormat& format);
uint64_t digest_rows(const FillRows& task, const RowFormat& format);
OutputSummary summarize_rows(const OutputRows& task, int64_t head_dim);

}  // namespace longnet
