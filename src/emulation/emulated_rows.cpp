// The row functions of kernels/cuda/rows.h on the emulated device, answered by the CPU's kernels.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "emulation/emulated_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/reference/reference_kernel.h"

namespace longnet {
namespace {

template <class T>
DeviceBuffer uploaded(std::span<const T> tasks, MemoryLedger& ledger) {
  DeviceBuffer buffer(ledger, "task_lists", int64_t(tasks.size_bytes()));
  buffer.upload(std::vector<T>(tasks.begin(), tasks.end()));
  return buffer;
}

// Enqueues work(task) for the tasks of a list.
template <class T, class F>
void for_tasks(const Stream& stream, const DeviceBuffer& list, F work) {
  const T* const first = reinterpret_cast<const T*>(list.data());
  emulate_launch(stream, [=, tasks = std::vector<T>(first, first + list.size() / sizeof(T))] {
    for (const T& task : tasks) work(task);
  });
}

DType type_of(int64_t element_bytes) {
  return element_bytes == 4 ? DType::kFloat32 : DType::kBFloat16;
}
DType type_of(StoredAs stored) {
  check(stored != StoredAs::kFloat16, "the emulated device stores no rows of fp16");
  return stored == StoredAs::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

}  // namespace

DevicePack::DevicePack(std::span<const PackTask> tasks, int64_t row_bytes, int64_t element_bytes,
                       MemoryLedger& ledger)
    : tasks_(uploaded(tasks, ledger)),
      row_bytes_(row_bytes),
      element_bytes_(element_bytes),
      wide_(false) {}
void DevicePack::launch(const Stream& stream) const {
  const AttendOptions options{.head_dim = row_bytes_ / element_bytes_,
                              .dtype = type_of(element_bytes_)};
  for_tasks<PackTask>(stream, tasks_, [options](const PackTask& task) {
    make_reference_kernel()->pack({&task, 1}, options, 1);
  });
}

DeviceConvert::DeviceConvert(std::span<const PackTask> tasks, Direction direction, int64_t head_dim,
                             MemoryLedger& ledger)
    : tasks_(uploaded(tasks, ledger)), head_dim_(head_dim), direction_(direction) {}
void DeviceConvert::launch(const Stream& stream) const {
  const AttendOptions options{.head_dim = head_dim_, .dtype = DType::kBFloat16};
  for_tasks<PackTask>(stream, tasks_, [options, how = direction_](const PackTask& task) {
    const auto kernel = make_reference_kernel();
    how == Direction::kRound ? kernel->round({&task, 1}, options, 1)
                             : kernel->widen({&task, 1}, options, 1);
  });
}

DeviceMerge::DeviceMerge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
                         MemoryLedger& ledger)
    : tasks_(uploaded(tasks, ledger)), head_dim_(head_dim), rule_(rule), wide_(false) {}
void DeviceMerge::launch(const Stream& stream) const {
  for_tasks<MergeTask>(stream, tasks_, [d = head_dim_, rule = rule_](const MergeTask& task) {
    make_reference_kernel()->merge({&task, 1}, rule, {.head_dim = d}, 1);
  });
}

DeviceWiden::DeviceWiden(std::span<const WidenTask> tasks, int64_t head_dim, StoredAs stored,
                         float factor, MemoryLedger& ledger)
    : tasks_(uploaded(tasks, ledger)), head_dim_(head_dim), stored_(stored), factor_(factor) {
  type_of(stored);
}
void DeviceWiden::launch(const Stream& stream) const {
  for_tasks<WidenTask>(stream, tasks_, [d = head_dim_, factor = factor_](const WidenTask& t) {
    for (int64_t row = 0; row < t.rows; ++row) {
      float& lse = t.into.lse[row * t.into.lse_stride];
      const bool blind = !(lse > -1e30f);
      if (blind) lse = -std::numeric_limits<float>::infinity();
      const auto* const from = static_cast<const uint16_t*>(t.from) + row * d;
      for (int64_t c = 0; c < d; ++c)
        t.into.o[row * t.into.o_stride + c] = blind ? 0.0f : bf16_value(from[c]) * factor;
    }
  });
}

DeviceFill::DeviceFill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                       StoredAs stored, MemoryLedger& ledger)
    : tasks_(uploaded(tasks, ledger)), head_dim_(head_dim), seed_(seed), stored_(stored) {}
void DeviceFill::launch(const Stream& stream) const {
  const RowFormat format{.seed = seed_, .head_dim = head_dim_, .dtype = type_of(stored_)};
  for_tasks<FillRows>(stream, tasks_, [format](const FillRows& task) {
    make_cpu_row_worker()->fill({&task, 1}, format, 1);
  });
}

uint64_t device_digest(std::span<const FillRows> tasks, int64_t head_dim, int64_t element_bytes,
                       const Stream& stream) {
  stream.synchronize();
  return make_cpu_row_worker()->digest(tasks,
                                       {.head_dim = head_dim, .dtype = type_of(element_bytes)}, 1);
}
void device_summarize(std::span<const OutputRows> tasks, int64_t head_dim, const Stream& stream,
                      std::span<OutputSummary> summaries) {
  stream.synchronize();
  make_cpu_row_worker()->summarize(tasks, head_dim, 1, summaries);
}

void fill_floats(float* at, int64_t count, float value, const Stream& stream) {
  emulate_launch(stream, [=] { std::fill_n(at, count, value); });
}
void count_nan(const float* at, int64_t count, unsigned long long* total, const Stream& stream) {
  emulate_launch(stream, [=] {
    *total += uint64_t(std::count_if(at, at + count, [](float x) { return std::isnan(x); }));
  });
}

}  // namespace longnet
