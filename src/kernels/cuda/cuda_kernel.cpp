// `cuda`: the own mma.sync kernel, on any strides.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/attend_launch.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tile_plan.h"
#include "kernels/cuda/tile_shapes.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 256;

class PreparedTiles final : public PreparedAttend {
 public:
  PreparedTiles(const TilePlan& plan, const DeviceAttendOptions& options,
                const TileLauncher& launcher, MemoryLedger& ledger)
      : launcher_(launcher), num_tiles_(int64_t(plan.tiles.size())) {
    const auto upload = [&](const auto& list) {
      DeviceBuffer buffer(ledger, "task_lists", int64_t(list.size() * sizeof(list[0])));
      buffer.upload(list);
      return buffer;
    };
    tasks_ = upload(plan.tasks);
    runs_ = upload(plan.runs);
    tiles_ = upload(plan.tiles);
    inputs_ = tile_inputs(reinterpret_cast<const TileTask*>(tasks_.data()),
                          reinterpret_cast<const TileRun*>(runs_.data()),
                          reinterpret_cast<const TileRef*>(tiles_.data()), options.head_dim,
                          options.causal, options.merge, options.output_scale);
  }
  void launch(const Stream& stream) const override {
    launcher_.launch(inputs_, num_tiles_, stream);
  }

 private:
  TileLauncher launcher_;
  int64_t num_tiles_;
  DeviceBuffer tasks_, runs_, tiles_;
  TileInputs inputs_{};
};

class CudaKernel final : public DeviceKernel {
 public:
  explicit CudaKernel(std::string_view shape) : shape_(shape) {}
  std::string_view name() const override { return "cuda"; }
  bool merges() const override { return true; }

  std::string why_unsupported(const DeviceAttendOptions& options) const override {
    const int64_t d = options.head_dim;
    if (d < 8 || d > kMaxHeadDim || d % 8 != 0)
      return concat("head_dim must be a multiple of 8 from 8 to ", kMaxHeadDim, ", is ", d);
    if (!find(options)) return concat("no tile shape ", shape_, " for head_dim ", d);
    return "";
  }

  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendGrid> grids,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    const std::string refusal = why_unsupported(options);
    check(refusal.empty(), "kernel cuda: ", refusal);
    const std::string misaligned = why_misaligned(grids);
    check(misaligned.empty(), "kernel cuda: ", misaligned);
    const TileLauncher& launcher = *find(options);
    return std::make_unique<PreparedTiles>(plan_tiles(grids, options.causal, launcher.rows),
                                           options, launcher, ledger);
  }

 private:
  const TileLauncher* find(const DeviceAttendOptions& options) const {
    return find_launcher(tile_launchers(), options.element, options.head_dim, shape_);
  }
  std::string shape_;
};

}  // namespace

std::vector<std::string> cuda_kernel_shapes(int64_t head_dim) {
  return launcher_names(tile_launchers(), head_dim);
}

std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view shape) {
  return std::make_unique<CudaKernel>(shape);
}

}  // namespace longnet
