#include "kernels/cuda/sm90a_kernel.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/group_launch.h"
#include "kernels/cuda/group_plan.h"
#include "kernels/cuda/group_shapes.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensor_maps.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 128;
constexpr int kSharesWhenConcurrent = 4;  // blocks per multiprocessor, one after the other

class PreparedGroups final : public PreparedAttend {
 public:
  PreparedGroups(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                 const GroupLauncher& launcher, MemoryLedger& ledger)
      : launcher_(launcher) {
    const int shares = options.concurrent ? kSharesWhenConcurrent : 1;
    const GroupPlan plan = plan_groups(grids, options.causal,
                                       {.rows = launcher.rows,
                                        .keys = launcher.keys,
                                        .blocks = shares * current_multiprocessors()});
    blocks_ = int(plan.block_begin.size()) - 1;
    if (blocks_ == 0) return;
    const auto upload = [&](DeviceBuffer& buffer, const auto& list) {
      buffer = DeviceBuffer(ledger, "task_lists", int64_t(list.size() * sizeof(list[0])));
      return buffer.upload(list);
    };
    std::vector<TensorMap> maps;
    for (size_t i = 0; i < plan.views.size(); ++i)
      maps.push_back(encode_tensor_map(plan.views[i], options.element, options.head_dim,
                                       plan.of_queries[i] ? launcher.rows : launcher.keys));
    inputs_ = group_inputs(options.head_dim, options.causal, options.merge, options.output_scale);
    inputs_.tasks = upload(tasks_, plan.tasks);
    if (!plan.runs.empty()) inputs_.runs = upload(runs_, plan.runs);
    inputs_.tiles = upload(tiles_, plan.tiles);
    inputs_.block_begin = upload(block_begin_, plan.block_begin);
    inputs_.maps = upload(maps_, maps);
  }
  void launch(const Stream& stream) const override { launcher_.launch(inputs_, blocks_, stream); }

 private:
  GroupLauncher launcher_;
  int blocks_ = 0;
  DeviceBuffer tasks_, runs_, tiles_, block_begin_, maps_;
  GroupInputs inputs_{};
};

class Sm90aKernel final : public DeviceKernel {
 public:
  explicit Sm90aKernel(std::string_view shape) : shape_(shape) {}
  std::string_view name() const override { return "cuda_sm90a"; }
  bool merges() const override { return true; }
  std::string why_unsupported(const DeviceAttendOptions& options) const override {
    const int64_t d = options.head_dim;
    if (d < 8 || d > kMaxHeadDim || d % 8 != 0)
      return concat("head_dim must be a multiple of 8 from 8 to ", kMaxHeadDim, ", is ", d);
    if (find(options) == nullptr) return concat("no tile shape ", shape_, " for head_dim ", d);
    return "";
  }
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendGrid> grids,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    std::string refusal = why_unsupported(options);
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel cuda_sm90a: ", refusal);
    return std::make_unique<PreparedGroups>(grids, options, *find(options), ledger);
  }

 private:
  const GroupLauncher* find(const DeviceAttendOptions& options) const {
    return find_launcher(group_launchers(), options.element, options.head_dim, shape_);
  }
  std::string shape_;
};

}  // namespace

std::string why_sm90a_absent() {
  const DeviceReport report = describe_devices();
  for (const DeviceInfo& device : report.devices)
    if (device.major != 9 || device.minor != 0)
      return concat("kernel cuda_sm90a needs compute capability 9.0, device ", device.index, " (",
                    device.name, ") has ", device.major, ".", device.minor, ": use kernel cuda");
  return "";
}

std::vector<std::string> sm90a_kernel_shapes(int64_t head_dim) {
  return launcher_names(group_launchers(), head_dim);
}

std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view shape) {
  return std::make_unique<Sm90aKernel>(shape);
}

}  // namespace longnet
