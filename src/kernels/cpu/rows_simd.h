// Row-wise work on one core: the LSE merge, sums and copies of strided rows, and what a RowWorker
// does with a run of rows.
#pragma once
#include <cstdint>

#include "kernels/attention_kernel.h"
#include "kernels/row_worker.h"

namespace longnet {

// into = merge(into, from). With d = |lse_a - lse_b|: the larger side weighs 1 / (1 + e^-d), the
// other e^-d / (1 + e^-d), and lse = max + ln(1 + e^-d): nothing overflows, and (0, -inf) is an
// exact identity.
void merge_rows(const MergeTask& task, MergeRule rule, int64_t head_dim);

// into += from, rows of fp32.
void add_rows(const PackTask& task, int64_t head_dim);

// Copies rows, whose elements have `element_bytes`, or converts them between fp32 and bf16.
void pack_rows(const PackTask& task, Conversion conversion, int64_t head_dim,
               int64_t element_bytes);

inline constexpr int64_t kMaxRowWords = 128;  // 64-bit words of the longest row, 256 fp32

void fill_rows(const FillRows& task, const RowFormat& format);
uint64_t digest_rows(const FillRows& task, const RowFormat& format);
OutputSummary summarize_rows(const OutputRows& task, int64_t head_dim);

}  // namespace longnet
