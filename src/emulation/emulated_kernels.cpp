// This project's kernels on the emulated device, computed by the CPU kernels: for programs that run
// whole sweeps, where executing the kernels' PTX would take too long.
#include "emulation/emulated_kernels.h"

#include <utility>
#include <vector>

#include "emulation/emulated_device.h"
#include "kernels/cuda/sm90a_kernel.h"

namespace longnet {
namespace {

class EmulatedKernel final : public DeviceKernel {
 public:
  EmulatedKernel(std::string name, bool merges) : name_(std::move(name)), merges_(merges) {}
  std::string_view name() const override { return name_; }
  bool merges() const override { return merges_; }
  std::string why_unsupported(const DeviceAttendOptions& options) const override {
    return options.element == DeviceElement::kBFloat16 ? "" : "only bf16 is emulated";
  }
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendGrid> grids,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger&) const override {
    return std::make_unique<Prepared>(grids, options);
  }

 private:
  class Prepared final : public PreparedAttend {
   public:
    Prepared(std::span<const AttendGrid> grids, const DeviceAttendOptions& options)
        : grids_(grids.begin(), grids.end()), options_(options) {
      for (AttendGrid& grid : grids_) grid.task.kv = lists_.emplace_back(grid.task.kv.list());
    }
    void launch(const Stream& stream) const override {
      emulate_launch(stream, [this] {
        for (const AttendGrid& grid : grids_)
          for (int64_t i = 0; i < grid.size(); ++i) run(grid.at(i));
      });
    }

   private:
    void run(AttendTask task) const {
      const auto kernel = make_kernel("cpu");
      const AttendOptions options{.head_dim = options_.head_dim,
                                  .dtype = DType::kBFloat16,
                                  .causal = options_.causal,
                                  .output_scale = options_.output_scale};
      MemoryLedger ledger;
      const TaggedBuffer workspace(ledger, "workspace", kernel->workspace_bytes(options, 1));
      std::vector<float> o(size_t(task.q.rows * options_.head_dim)), lse(size_t(task.q.rows));
      const MergeTask merge{.from = {o.data(), lse.data(), options_.head_dim, 1},
                            .into = task.out,
                            .rows = task.q.rows};
      if (options_.merge) task.out = merge.from;
      const AttendGrid one{task};
      kernel->attend({&one, 1}, options, 1, workspace.bytes());
      if (options_.merge) kernel->merge({&merge, 1}, MergeRule::kLse, options, 1);
    }
    std::vector<AttendGrid> grids_;
    KvLists lists_;
    DeviceAttendOptions options_;
  };
  std::string name_;
  bool merges_;
};

}  // namespace

std::unique_ptr<DeviceKernel> make_emulated_kernel(std::string name, bool merges) {
  return std::make_unique<EmulatedKernel>(std::move(name), merges);
}

std::vector<std::string> cuda_kernel_shapes(int64_t) { return {"emulated"}; }
std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view) {
  return make_emulated_kernel("cuda", true);
}
std::string why_sm90a_absent() { return ""; }
std::vector<std::string> sm90a_kernel_shapes(int64_t) { return {"emulated"}; }
std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view) {
  return make_emulated_kernel("cuda_sm90a", true);
}

}  // namespace longnet
