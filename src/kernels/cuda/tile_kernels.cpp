// The own kernels, compiled in several tile shapes:
//   `cuda`        mma.sync, on any strides
//   `cuda_sm90a`  TMA and wgmma on strided views, for compute capability 9.0
//
// Every build with CUDA has cuda_sm90a; configurations can name it where -DLONGNET_CUDA_SM90A=ON.
// Tests execute its PTX (src/emulation); what a GPU makes of it is for scripts/gpu_validate.sh to
// show.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/cuda/group_plan.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

// Those of the smallest padded head dimension that fits.
template <class Inputs>
std::vector<const Launcher<Inputs>*> fitting_launchers(std::span<const Launcher<Inputs>> launchers,
                                                       DeviceElement element, int64_t head_dim) {
  std::vector<const Launcher<Inputs>*> found;
  for (const Launcher<Inputs>& l : launchers)
    if (l.element == element && l.head_dim >= head_dim &&
        (found.empty() || found.front()->head_dim == l.head_dim))
      found.push_back(&l);
  return found;
}

template <class Inputs>
std::vector<std::string> launcher_names(std::span<const Launcher<Inputs>> launchers,
                                        int64_t head_dim) {
  std::vector<std::string> names;
  for (const auto* l : fitting_launchers(launchers, DeviceElement::kBFloat16, head_dim))
    names.emplace_back(l->name);
  return names;
}

AttendInputs attend_inputs(const DeviceAttendOptions& options) {
  return {.head_dim = int32_t(options.head_dim),
          .causal = options.causal,
          .merge = options.merge,
          .scale_log2 = 1.44269504089f / std::sqrt(float(options.head_dim)),
          .output_scale = options.output_scale};
}

// Prepared: the kernel's PreparedAttend, made of grids, options, launcher and ledger.
template <class Inputs, class Prepared>
class ShapedKernel final : public DeviceKernel {
 public:
  // `shape`: a launcher's name; empty: the default of each head_dim.
  ShapedKernel(std::string name, std::span<const Launcher<Inputs>> launchers,
               std::string_view shape)
      : name_(std::move(name)), launchers_(launchers), shape_(shape) {}
  std::string_view name() const override { return name_; }
  bool merges() const override { return true; }

  std::string why_unsupported(const DeviceAttendOptions& options) const override {
    std::string why = why_head_dim_unsupported(options.head_dim, most_head_dim());
    if (why.empty() && find(options) == nullptr)
      why = concat("no tile shape ", shape_, " for head_dim ", options.head_dim);
    return why;
  }

  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendGrid> grids,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    std::string refusal = why_unsupported(options);
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel ", name_, ": ", refusal);
    return std::make_unique<Prepared>(grids, options, *find(options), ledger);
  }

 private:
  int64_t most_head_dim() const {
    return std::ranges::max(launchers_, {}, &Launcher<Inputs>::head_dim).head_dim;
  }
  const Launcher<Inputs>* find(const DeviceAttendOptions& options) const {
    for (const auto* l : fitting_launchers(launchers_, options.element, options.head_dim))
      if (shape_.empty() || l->name == shape_) return l;
    return nullptr;
  }

  std::string name_;
  std::span<const Launcher<Inputs>> launchers_;
  std::string shape_;
};

template <class T>
const T* uploaded(DeviceBuffer& buffer, const std::vector<T>& list, MemoryLedger& ledger) {
  buffer = DeviceBuffer(ledger, "task_lists", int64_t(list.size() * sizeof(T)));
  return buffer.upload(list);
}

// ---- cuda ----

class PreparedTiles final : public PreparedAttend {
 public:
  PreparedTiles(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                const TileLauncher& launcher, MemoryLedger& ledger)
      : launcher_(launcher) {
    const TilePlan plan = plan_tiles(grids, options.causal, launcher.rows);
    num_tiles_ = int64_t(plan.tiles.size());
    inputs_ = {attend_inputs(options), uploaded(tasks_, plan.tasks, ledger),
               uploaded(runs_, plan.runs, ledger), uploaded(tiles_, plan.tiles, ledger)};
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

// ---- cuda_sm90a ----

constexpr int kSharesWhenConcurrent = 4;  // blocks per multiprocessor, one after the other
constexpr uint32_t kBoxDims = 64;         // of 16 bits: the 128 bytes of the swizzle

// The driver is opened at run time: programs start without one.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
EncodeTiled find_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                              cudaEnableDefault, &result),
             "looking for cuTensorMapEncodeTiled");
  check(found != nullptr, "kernel cuda_sm90a: the driver has no cuTensorMapEncodeTiled (CUDA 12)");
  return reinterpret_cast<EncodeTiled>(found);
}

// A CUtensorMap: TMA instructions read it instead of an address. Lists of them lie on the device.
struct alignas(64) TensorMap {
  std::byte bits[128];
};

// [head_dim][rows][3 dimensions] of 16 bits, read in boxes of 64 dims x `box_rows`, swizzled by 128
// bytes; what is outside reads as zero. Throws Error with the driver's refusal.
TensorMap encode_tensor_map(const TensorView& view, DeviceElement element, int64_t head_dim,
                            int box_rows) {
  static const EncodeTiled encode = find_encoder();
  std::array<cuuint64_t, 5> size{cuuint64_t(head_dim), cuuint64_t(view.rows)};
  // A dimension of one element has no stride that matters, but it must be a valid one.
  std::array<cuuint64_t, 4> stride{view.rows > 1 ? cuuint64_t(view.row_stride) * 2 : 256};
  for (size_t k = 0; k < 3; ++k) {
    size[k + 2] = cuuint64_t(view.count[k]);
    stride[k + 1] = view.count[k] > 1 ? cuuint64_t(view.step_bytes[k]) : 256;
  }
  const std::array<cuuint32_t, 5> box{kBoxDims, cuuint32_t(box_rows), 1, 1, 1};
  const std::array<cuuint32_t, 5> every{1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             element == DeviceElement::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             5, const_cast<void*>(view.first), size.data(), stride.data(), box.data(), every.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "kernel cuda_sm90a: cuTensorMapEncodeTiled refused (error ",
        int(result), ") rows ", view.rows, " x ", view.row_stride, ", counts ", view.count[0], " ",
        view.count[1], " ", view.count[2], ", steps ", view.step_bytes[0], " ", view.step_bytes[1],
        " ", view.step_bytes[2], " (bytes)");
  return std::bit_cast<TensorMap>(map);
}

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
    std::vector<TensorMap> maps;
    for (size_t i = 0; i < plan.views.size(); ++i)
      maps.push_back(encode_tensor_map(plan.views[i], options.element, options.head_dim,
                                       plan.of_queries[i] ? launcher.rows : launcher.keys));
    inputs_ = {attend_inputs(options),
               uploaded(tasks_, plan.tasks, ledger),
               uploaded(runs_, plan.runs, ledger),
               uploaded(tiles_, plan.tiles, ledger),
               uploaded(block_begin_, plan.block_begin, ledger),
               uploaded(maps_, maps, ledger)};
  }
  void launch(const Stream& stream) const override { launcher_.launch(inputs_, blocks_, stream); }

 private:
  GroupLauncher launcher_;
  int blocks_ = 0;
  DeviceBuffer tasks_, runs_, tiles_, block_begin_, maps_;
  GroupInputs inputs_{};
};

}  // namespace

std::vector<std::string> cuda_kernel_shapes(int64_t head_dim) {
  return launcher_names(tile_launchers(), head_dim);
}

std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view shape) {
  return std::make_unique<ShapedKernel<TileInputs, PreparedTiles>>("cuda", tile_launchers(), shape);
}

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
  return std::make_unique<ShapedKernel<GroupInputs, PreparedGroups>>("cuda_sm90a",
                                                                     group_launchers(), shape);
}

}  // namespace longnet
