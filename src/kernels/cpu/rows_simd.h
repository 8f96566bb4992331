// Row-wise work on one core: the LSE merge and copies of strided rows (rows_simd.cpp), and what a
// RowWorker does with a run of rows (row_work_simd.cpp).
#pragma once
#include <cstdint>

#include "kernels/attention_kernel.h"
#include "kernels/row_worker.h"

namespace longnet {

// into = merge(into, from). With d = |lse_a - lse_b|: the larger side weighs 1 / (1 + e^-d), the
// other e^-d / (1 + e^-d), and lse = max + ln(1 + e^-d): nothing overflows, and (0, -inf) is an
// exact identity.
void merge_rows(const MergeTask& task, MergeRule rule, int64_t head_dim);

// Rows of fp32 to bf16 (to nearest, ties to even), and back.
void round_rows(const PackTask& task, int64_t head_dim);
void widen_rows(const PackTask& task, int64_t head_dim);

// Copies task.rows rows of row_bytes bytes; the strides of the task count elements.
void pack_rows(const PackTask& task, int64_t row_bytes, int64_t element_bytes);

inline constexpr int64_t kMaxRowWords = 128;  // 64-bit words of the longest row, 256 fp32

void fill_rows(const FillRows& task, const RowFormat& format);
uint64_t digest_rows(const FillRows& task, const RowFormat& format);
OutputSummary summarize_rows(const OutputRows& task, int64_t head_dim);

}  // namespace longnet
