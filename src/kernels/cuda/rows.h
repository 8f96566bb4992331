// Rows on a device: generate, pack, merge, fill, count. Lists are prepared once, launched many
// times.
//
//   merge of 300 rows: four blocks of 64 rows and one of 44; a thread has four columns of a row
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/device.h"
#include "kernels/attention_kernel.h"
#include "kernels/row_worker.h"

namespace longnet {

// A block's work: `count` rows of a task, from `first` on.
struct RowTile {
  int32_t task, count;
  int64_t first;
};

// Copies rows between strided places. Strides of the tasks are in elements of `element_bytes`.
class DevicePack {
 public:
  DevicePack(std::span<const PackTask> tasks, int64_t row_bytes, int64_t element_bytes,
             MemoryLedger& ledger);
  void launch(const Stream& stream) const;

 private:
  DeviceBuffer tasks_, tiles_;
  int64_t num_tiles_ = 0, row_bytes_, element_bytes_;
  bool wide_;  // every row can be copied in 16-byte pieces
};

// Copies rows of O between fp32 and bf16; strides in elements of each side.
class DeviceConvert {
 public:
  enum class Direction { kRound, kWiden };
  DeviceConvert(std::span<const PackTask> tasks, Direction direction, int64_t head_dim,
                MemoryLedger& ledger);
  void launch(const Stream& stream) const;

 private:
  DeviceBuffer tasks_, tiles_;
  int64_t num_tiles_ = 0, head_dim_;
  Direction direction_;
};

// into = merge(into, from), row by row; the rows may not overlap.
class DeviceMerge {
 public:
  DeviceMerge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
              MemoryLedger& ledger);
  void launch(const Stream& stream) const;

 private:
  DeviceBuffer tasks_, tiles_;
  int64_t num_tiles_ = 0, head_dim_;
  MergeRule rule_;
  bool wide_;
};

// Storage type of the rows.
enum class StoredAs { kBFloat16, kFloat16, kFloat32 };

// Dense 16-bit rows become the O of `into`, times a factor. A row whose LSE, already in its place,
// is the lowest float's neighbourhood or NaN saw no key: it becomes O = 0, LSE = -inf.
struct WidenTask {
  const void* from;
  PartialRun into;
  int64_t rows;
};
class DeviceWiden {
 public:
  DeviceWiden(std::span<const WidenTask> tasks, int64_t head_dim, StoredAs stored, float factor,
              MemoryLedger& ledger);
  void launch(const Stream& stream) const;

 private:
  DeviceBuffer tasks_, tiles_;
  int64_t num_tiles_ = 0, head_dim_;
  StoredAs stored_;
  float factor_;
};

// Rows of Q, K and V from the counter-based generator (core/random.h): the same bits as
// generate_row() for fp32 and bf16. Addresses are the device's.
class DeviceFill {
 public:
  DeviceFill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim, StoredAs stored,
             MemoryLedger& ledger);
  void launch(const Stream& stream) const;

 private:
  DeviceBuffer tasks_, tiles_;
  int64_t num_tiles_ = 0, head_dim_;
  uint64_t seed_;
  StoredAs stored_;
};

// Digests of input rows and summaries of output rows, as row_worker.h defines them. They block
// until the stream has finished. Addresses are the device's.
uint64_t device_digest(std::span<const FillRows> tasks, int64_t head_dim, int64_t element_bytes,
                       const Stream& stream);
void device_summarize(std::span<const OutputRows> tasks, int64_t head_dim, const Stream& stream,
                      std::span<OutputSummary> summaries);

void fill_floats(float* at, int64_t count, float value, const Stream& stream);
// Adds the number of NaNs to *total (device memory).
void count_nan(const float* at, int64_t count, unsigned long long* total, const Stream& stream);

}  // namespace longnet
