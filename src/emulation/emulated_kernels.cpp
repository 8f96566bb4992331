// This project's kernels and row functions on the emulated device, computed by the CPU's kernels:
// for programs that run whole sweeps, where executing the kernels' PTX would take too long.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ranges>
#include <utility>
#include <vector>

#include "core/tagged_memory.h"
#include "emulation/emulated_device.h"
#include "kernels/cuda/device_model.h"
#include "kernels/cuda/rows.h"
#include "kernels/model_checks.h"

namespace longnet {
namespace {

AttendOptions options_of(const DeviceAttendOptions& device) {
  return {.head_dim = device.head_dim,
          .dtype = DType::kBFloat16,
          .causal = device.causal,
          .output_scale = device.output_scale};
}

void attend_on_cpu(const AttendTask& task, const AttendOptions& options) {
  const auto kernel = make_cpu_kernel();
  MemoryLedger ledger;
  const TaggedBuffer workspace(ledger, kWorkspaceTag, kernel->workspace_bytes(options, 1));
  const AttendGrid grid{task};
  kernel->attend({&grid, 1}, options, 1, workspace.bytes());
}

// Calls work(fp32 rows) with the widened rows of O that `rows` holds in bf16, and rounds them back.
template <class F>
void in_fp32(PartialRun rows, int64_t count, int64_t head_dim, F work) {
  std::vector<float> wide(size_t(count * head_dim));
  const AttendOptions options{.head_dim = head_dim, .dtype = DType::kBFloat16};
  PackTask pack{rows.o, wide.data(), 2 * rows.o_stride, head_dim, count};
  make_reference_kernel()->pack({&pack, 1}, Conversion::kWiden, options, 1);
  work(PartialRun{wide.data(), rows.lse, head_dim, rows.lse_stride});
  std::swap(pack.from_stride, pack.into_stride);
  pack.from = wide.data(), pack.into = rows.o;
  make_reference_kernel()->pack({&pack, 1}, Conversion::kRound, options, 1);
}

void attend(AttendTask task, const DeviceAttendOptions& device) {
  if (device.output_dtype == DType::kBFloat16) {
    DeviceAttendOptions in_floats = device;
    in_floats.output_dtype = DType::kFloat32;
    return in_fp32(task.out, task.q.rows, device.head_dim, [&](const PartialRun& wide) {
      task.out = wide;
      attend(task, in_floats);
    });
  }
  const AttendOptions options = options_of(device);
  std::vector<float> o(size_t(task.q.rows * options.head_dim)), lse(size_t(task.q.rows));
  const MergeTask merge{
      .from = {o.data(), lse.data(), options.head_dim, 1}, .into = task.out, .rows = task.q.rows};
  if (device.merge) task.out = merge.from;
  attend_on_cpu(task, options);
  if (device.merge) make_cpu_kernel()->merge({&merge, 1}, MergeRule::kLse, options, 1);
}

// Enqueues `work` at each launch, behind what `before` does.
Prepared launches(std::function<void()> work, Prepared before = {}) {
  before.then([work = std::move(work)](const Stream& on) { emulate_launch(on.handle(), work); });
  return before;
}

class EmulatedKernel final : public DeviceKernel {
 public:
  explicit EmulatedKernel(bool merges) : merges_(merges) {}
  bool merges() const override { return merges_; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger&) const override {
    const auto tasks = kept(grids);
    for (AttendGrid& grid : tasks->grids) tasks->keep_keys(grid);
    return launches([=] {
      for (const AttendGrid& grid : tasks->grids)
        for (int64_t i = 0; i < grid.size(); ++i) attend(grid.at(i), options);
    });
  }
  Prepared prepare_backward(std::span<const BackwardGrid> grids, const DeviceAttendOptions& options,
                            MemoryLedger&) const override {
    const auto tasks = kept(grids);
    for (BackwardGrid& grid : tasks->grids) tasks->keep_keys(grid.attend);
    return launches([=] {
      const auto kernel = make_cpu_kernel();
      const AttendOptions how = options_of(options);
      MemoryLedger ledger;
      const TaggedBuffer workspace(ledger, kWorkspaceTag, kernel->backward_workspace_bytes(how, 1));
      kernel->attend_backward(tasks->grids, how, 1, workspace.bytes());
    });
  }

 private:
  // Grids and their key runs, until they are launched for the last time.
  template <class Grid>
  struct Tasks {
    std::vector<Grid> grids;
    KvLists lists;
    void keep_keys(AttendGrid& grid) { grid.task.kv = lists.emplace_back(grid.task.kv.list()); }
  };
  template <class Grid>
  static std::shared_ptr<Tasks<Grid>> kept(std::span<const Grid> grids) {
    return std::make_shared<Tasks<Grid>>(Tasks<Grid>{{grids.begin(), grids.end()}, {}});
  }

  bool merges_;
};

// Enqueues work(task) for each of the tasks, which are uploaded as to the device.
template <class T, class F>
Prepared prepared(std::span<const T> tasks, MemoryLedger& ledger, F work) {
  Prepared all;
  const T* const list = all.upload(std::vector(tasks.begin(), tasks.end()), ledger);
  return launches(
      [=, count = tasks.size()] {
        for (const T& task : std::span(list, count)) work(task);
      },
      std::move(all));
}

DType type_of(int64_t element_bytes) {
  return element_bytes == 4 ? DType::kFloat32 : DType::kBFloat16;
}

}  // namespace

std::unique_ptr<DeviceKernel> make_emulated_kernel(bool merges) {
  return std::make_unique<EmulatedKernel>(merges);
}

std::vector<std::string> cuda_kernel_shapes(int64_t, bool) { return {"emulated"}; }
std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view) {
  return make_emulated_kernel(true);
}
std::string why_sm90a_absent() { return ""; }
std::vector<std::string> sm90a_kernel_shapes(int64_t, bool) { return {"emulated"}; }
std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view) {
  return make_emulated_kernel(true);
}

std::string why_device_model_absent() { return ""; }
Prepared prepare_model_task(const ModelTask& task, MemoryLedger& ledger, std::byte* workspace) {
  std::visit([](const auto& what) { check_task(what); }, task);
  Prepared own;
  const int64_t bytes = model_workspace_bytes(task);
  if (workspace == nullptr && bytes > 0) own.workspace(bytes, ledger);
  return launches(
      [=] {
        const auto kernel = make_cpu_model_kernel();
        MemoryLedger of_cpu;
        const TaggedBuffer scratch(of_cpu, kWorkspaceTag, kernel->workspace_bytes(1));
        kernel->run(task, 1, scratch.bytes());
      },
      std::move(own));
}

Prepared prepare_pack(std::span<const PackTask> tasks, Conversion conversion, int64_t head_dim,
                      int64_t element_bytes, MemoryLedger& ledger) {
  const AttendOptions options{.head_dim = head_dim, .dtype = type_of(element_bytes)};
  return prepared(tasks, ledger, [=](const PackTask& task) {
    make_reference_kernel()->pack({&task, 1}, conversion, options, 1);
  });
}

Prepared prepare_merge(std::span<const MergeTask> tasks, MergeRule rule, int64_t head_dim,
                       MemoryLedger& ledger, DType dtype) {
  return prepared(tasks, ledger, [=](MergeTask task) {
    const auto merge = [&] {
      make_reference_kernel()->merge({&task, 1}, rule, {.head_dim = head_dim}, 1);
    };
    if (dtype == DType::kFloat32) return merge();
    in_fp32(task.from, task.rows, head_dim, [&](const PartialRun& from) {
      in_fp32(task.into, task.rows, head_dim, [&](const PartialRun& into) {
        task.from = from, task.into = into;
        merge();
      });
    });
  });
}

Prepared prepare_add(std::span<const SumTask> tasks, int64_t head_dim, MemoryLedger& ledger) {
  return prepared(tasks, ledger, [=](const SumTask& task) {
    make_reference_kernel()->add({&task, 1}, {.head_dim = head_dim}, 1);
  });
}

Prepared prepare_delta(std::span<const DeltaTask> tasks, int64_t head_dim, MemoryLedger& ledger) {
  const AttendOptions options{.head_dim = head_dim, .dtype = DType::kBFloat16};
  return prepared(tasks, ledger, [=](const DeltaTask& task) {
    make_reference_kernel()->delta({&task, 1}, options, 1);
  });
}

Prepared prepare_widen(std::span<const WidenTask> tasks, int64_t head_dim, float factor,
                       MemoryLedger& ledger) {
  return prepared(tasks, ledger, [=](const WidenTask& t) {
    for (int64_t row = 0; row < t.rows; ++row) {
      float& lse = t.into.lse[row * t.into.lse_stride];
      const bool blind = !(lse > -1e30f);
      if (blind) lse = -std::numeric_limits<float>::infinity();
      const auto* const from = static_cast<const uint16_t*>(t.from) + row * head_dim;
      for (int64_t c = 0; c < head_dim; ++c)
        t.into.o[row * t.into.o_stride + c] = blind ? 0.0f : bf16_value(from[c]) * factor;
    }
  });
}

Prepared prepare_sdpa_rows(std::span<const SdpaRowsTask> tasks, int64_t head_dim, float factor,
                           MemoryLedger& ledger) {
  return prepared(tasks, ledger, [=](const SdpaRowsTask& t) {
    const float inf = std::numeric_limits<float>::infinity();
    for (int64_t row = 0; row < t.rows; ++row) {
      const auto* const from = static_cast<const uint16_t*>(t.grad_out) + row * t.grad_out_stride;
      const float* const statistics = t.statistics + row * t.statistics_stride;
      auto* const o = static_cast<uint16_t*>(t.into_o) + row * head_dim;
      std::copy_n(from, head_dim, static_cast<uint16_t*>(t.into_grad_out) + row * head_dim);
      std::fill_n(o, head_dim, uint16_t{0});
      float rest = statistics[1] * factor;
      const auto size = [&](int64_t c) { return o[c] != 0 ? -1 : std::abs(bf16_value(from[c])); };
      for (int n = 0; n < 2; ++n) {  // in the columns of the two largest
        const int64_t c = std::ranges::max(std::views::iota(int64_t{0}, head_dim), {}, size);
        const float x = bf16_value(from[c]);
        if (x == 0) break;
        o[c] = bf16_bits(rest / x);
        rest -= x * bf16_value(o[c]);
      }
      t.into_lse[row] = statistics[0] == -inf ? inf : statistics[0];
    }
  });
}

Prepared prepare_add_widened(std::span<const PackTask> tasks, int64_t head_dim, float factor,
                             MemoryLedger& ledger) {
  return prepared(tasks, ledger, [=](const PackTask& t) {
    for (int64_t row = 0; row < t.rows; ++row)
      for (int64_t c = 0; c < head_dim; ++c)
        static_cast<float*>(t.into)[row * t.into_stride + c] +=
            factor * bf16_value(static_cast<const uint16_t*>(t.from)[row * t.from_stride + c]);
  });
}

Prepared prepare_fill(std::span<const FillRows> tasks, uint64_t seed, int64_t head_dim,
                      DType stored, MemoryLedger& ledger) {
  const RowFormat format{.seed = seed, .head_dim = head_dim, .dtype = stored};
  return prepared(tasks, ledger, [format](const FillRows& task) {
    make_cpu_row_worker()->fill({&task, 1}, format, 1);
  });
}

std::unique_ptr<RowWorker> make_device_row_worker() { return make_cpu_row_worker(); }

void fill_floats(float* at, int64_t count, float value, const Stream& stream) {
  emulate_launch(stream.handle(), [=] { std::fill_n(at, count, value); });
}
void count_nan(const float* at, int64_t count, unsigned long long* total, const Stream& stream,
               DType dtype) {
  emulate_launch(stream.handle(), [=] {
    const auto* const bits = reinterpret_cast<const uint16_t*>(at);
    *total += uint64_t(dtype == DType::kBFloat16
                           ? std::count_if(bits, bits + 2 * count,
                                           [](uint16_t x) { return (x & 0x7FFF) > 0x7F80; })
                           : std::count_if(at, at + count, [](float x) { return std::isnan(x); }));
  });
}

}  // namespace longnet
