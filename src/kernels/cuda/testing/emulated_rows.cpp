// The row functions of kernels/cuda/rows.h on the emulated device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/cuda/testing/emulated_device.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/testing/emulated_block.h"
#include "kernels/reference/reference_kernel.h"

namespace longnet {
namespace {

template <class T>
DeviceBuffer kept(std::span<const T> tasks, MemoryLedger& ledger) {
  DeviceBuffer buffer(ledger, "task_lists", int64_t(tasks.size_bytes()));
  buffer.upload(std::vector<T>(tasks.begin(), tasks.end()));
  return buffer;
}
template <class T>
std::vector<T> list_of(const DeviceBuffer& buffer) {
  const T* const first = reinterpret_cast<const T*>(buffer.data());
  return {first, first + size_t(buffer.size()) / sizeof(T)};
}

void widen_row(const WidenTask& t, int64_t row, int64_t d, StoredAs stored, float factor) {
  float& lse = t.into.lse[row * t.into.lse_stride];
  const bool blind = !(lse > -1e30f);
  if (blind) lse = -std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < d; ++c) {
    const uint16_t bits = static_cast<const uint16_t*>(t.from)[row * d + c];
    const float x =
        stored == StoredAs::kFloat16 ? EmulatedFp16::value(bits) : EmulatedBf16::value(bits);
    t.into.o[row * t.into.o_stride + c] = blind ? 0.0f : x * factor;
  }
}

void store_row(const std::vector<float>& row, void* out, int64_t at, StoredAs stored) {
  for (const float x : row) {
    if (stored == StoredAs::kFloat32)
      static_cast<float*>(out)[at++] = x;
    else
      static_cast<uint16_t*>(out)[at++] =
          stored == StoredAs::kFloat16 ? EmulatedFp16::bits(x) : EmulatedBf16::bits(x);
  }
}

}  // namespace

DevicePack::DevicePack(std::span<const PackTask> tasks, int64_t row_bytes, int64_t element_bytes,
                       MemoryLedger& ledger)
    : tasks_(kept(tasks, ledger)),
      row_bytes_(row_bytes),
      element_bytes_(element_bytes),
      wide_(false) {}
void DevicePack::launch(const Stream& stream) const {
  emulate_launch(stream, [tasks = list_of<PackTask>(tasks_), row = row_bytes_, e = element_bytes_] {
    for (const PackTask& t : tasks)
      for (int64_t i = 0; i < t.rows; ++i)
        std::memcpy(static_cast<std::byte*>(t.into) + i * t.into_stride * e,
                    static_cast<const std::byte*>(t.from) + i * t.from_stride * e, size_t(row));
  });
}

DeviceConvert::DeviceConvert(std::span<const PackTask> tasks, Direction direction, int64_t head_dim,
                             MemoryLedger& ledger)
    : tasks_(kept(tasks, ledger)), head_dim_(head_dim), direction_(direction) {}
void DeviceConvert::launch(const Stream& stream) const {
  emulate_launch(stream, [tasks = list_of<PackTask>(tasks_), d = head_dim_, how = direction_] {
    const auto kernel = make_reference_kernel();
    const AttendOptions options{.head_dim = d, .dtype = DType::kBFloat16};
    if (how == Direction::kRound)
      kernel->round(tasks, options, 1);
    else
      kernel->widen(tasks, options, 1);
  });
}

DeviceMerge::DeviceMerge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
                         MemoryLedger& ledger)
    : tasks_(kept(tasks, ledger)), head_dim_(head_dim), rule_(rule), wide_(false) {}
void DeviceMerge::launch(const Stream& stream) const {
  emulate_launch(stream, [tasks = list_of<MergeTask>(tasks_), d = head_dim_, rule = rule_] {
    make_reference_kernel()->merge(tasks, rule, {.head_dim = d}, 1);
  });
}

DeviceWiden::DeviceWiden(std::span<const WidenTask> tasks, int64_t head_dim, StoredAs stored,
                         float factor, MemoryLedger& ledger)
    : tasks_(kept(tasks, ledger)), head_dim_(head_dim), stored_(stored), factor_(factor) {}
void DeviceWiden::launch(const Stream& stream) const {
  emulate_launch(stream,
                 [tasks = list_of<WidenTask>(tasks_), d = head_dim_, how = stored_, f = factor_] {
                   for (const WidenTask& t : tasks)
                     for (int64_t i = 0; i < t.rows; ++i) widen_row(t, i, d, how, f);
                 });
}

DeviceFill::DeviceFill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                       StoredAs stored, MemoryLedger& ledger)
    : tasks_(kept(tasks, ledger)), head_dim_(head_dim), seed_(seed), stored_(stored) {}
void DeviceFill::launch(const Stream& stream) const {
  emulate_launch(
      stream, [tasks = list_of<FillRows>(tasks_), d = head_dim_, seed = seed_, how = stored_] {
        std::vector<float> row(static_cast<size_t>(d));
        for (const FillRows& t : tasks)
          for (int64_t i = 0; i < t.rows; ++i) {
            generate_row({seed, t.tensor, t.first_token + i * t.token_step, t.head}, d, row.data());
            store_row(row, t.out, i * t.row_stride, how);
          }
      });
}

uint64_t device_digest(std::span<const FillRows> tasks, int64_t head_dim, int64_t element_bytes,
                       const Stream& stream) {
  stream.synchronize();
  const RowFormat format{.head_dim = head_dim,
                         .dtype = element_bytes == 4 ? DType::kFloat32 : DType::kBFloat16};
  return make_cpu_row_worker()->digest(tasks, format, 1);
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
