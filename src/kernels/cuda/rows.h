// Rows on a device: generate, pack, merge, fill, count. Lists are prepared once, launched many
// times.
//
//   merge of 300 rows: four blocks of 64 rows and one of 44; a thread has four columns of a row
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cuda/device_kernel.h"
#include "kernels/row_worker.h"

namespace longnet {

// A block's work: `count` rows of a task, from `first` on.
struct RowTile {
  int32_t task, count;
  int64_t first;
};

// Copies rows of head_dim elements between strided places, or converts them between fp32 and bf16.
// `element_bytes`: of the storage.
Prepared prepare_pack(std::span<const PackTask> tasks, Conversion conversion, int64_t head_dim,
                      int64_t element_bytes, MemoryLedger& ledger);

// into = merge(into, from), row by row; the rows may not overlap. `dtype`: of O.
Prepared prepare_merge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
                       MemoryLedger& ledger, DType dtype = DType::kFloat32);

// Sums of gradients.
Prepared prepare_add(std::span<const SumTask> tasks, int64_t head_dim, MemoryLedger& ledger);

// L and delta of rows (DeltaTask), dO in bf16.
Prepared prepare_delta(std::span<const DeltaTask> tasks, int64_t head_dim, MemoryLedger& ledger);

// Dense rows of bf16 become the O of `into`, times a factor. A row whose LSE, already in its place,
// is NaN or next to the lowest float saw no key: it becomes O = 0, LSE = -inf.
struct WidenTask {
  const void* from;
  PartialRun into;
  int64_t rows;
};
Prepared prepare_widen(std::span<const WidenTask> tasks, int64_t head_dim, float factor,
                       MemoryLedger& ledger);

// Makes the dense rows that cuDNN's backward pass reads: dO; O with dO . O = delta times a
// factor; L, +inf where it is -inf. cuDNN computes delta from O again, and programs hand delta on
// without O. Two numbers of a row suffice, in the columns of the largest dO, the second for what
// the first one's rounding leaves: the sum is right to 2^-16.
struct SdpaRowsTask {
  const void* grad_out;
  const float* statistics;  // L, delta right behind it
  int64_t grad_out_stride, statistics_stride;
  void *into_grad_out, *into_o;
  float* into_lse;
  int64_t rows;
};
Prepared prepare_sdpa_rows(std::span<const SdpaRowsTask> tasks, int64_t head_dim, float factor,
                           MemoryLedger& ledger);
// into += factor * from, from rows of bf16 to those of fp32.
Prepared prepare_add_widened(std::span<const PackTask> tasks, int64_t head_dim, float factor,
                             MemoryLedger& ledger);

// Rows of Q, K and V from the counter-based generator (core/random.h): the same bits as
// generate_row() for fp32 and bf16. Addresses are the device's.
Prepared prepare_fill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                      DType stored, MemoryLedger& ledger);

// RowWorker on the calling thread's GPU: tasks hold addresses of the device. Calls return when the
// device has finished; `threads` is ignored.
std::unique_ptr<RowWorker> make_device_row_worker();

void fill_floats(float* at, int64_t count, float value, const Stream& stream);
// Adds the number of NaNs to *total (device memory).
void count_nan(const float* at, int64_t count, unsigned long long* total, const Stream& stream,
               DType dtype = DType::kFloat32);

}  // namespace longnet
