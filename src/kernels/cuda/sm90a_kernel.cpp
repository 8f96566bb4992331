#include "kernels/cuda/sm90a_kernel.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/cuda/cuda_check.h"
#include "kernels/cuda/group_launch.h"
#include "kernels/cuda/group_plan.h"
#include "kernels/cuda/group_shapes.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tile_plan.h"

namespace longnet {
namespace {

constexpr int64_t kMaxHeadDim = 128;
constexpr int kSharesWhenConcurrent = 4;  // blocks per multiprocessor, one after the other
constexpr uint32_t kBoxDims = 64;         // of 16 bits: the 128 bytes of the swizzle

// The driver is opened at run time: programs start without one.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
EncodeTiled encode_tiled() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                              cudaEnableDefault, &result),
             "looking for cuTensorMapEncodeTiled");
  check(found != nullptr, "kernel cuda_sm90a: the driver has no cuTensorMapEncodeTiled (CUDA 12)");
  return reinterpret_cast<EncodeTiled>(found);
}

// [head_dim][rows][3 dimensions], read in boxes of 64 dims x box_rows.
CUtensorMap tensor_map(EncodeTiled encode, const TensorView& view, DeviceElement element,
                       int64_t head_dim, int box_rows) {
  std::array<cuuint64_t, 5> size{cuuint64_t(head_dim), cuuint64_t(view.base.rows)};
  // A dimension of one element has no stride that matters, but it must be a valid one.
  std::array<cuuint64_t, 4> stride{view.base.rows > 1 ? cuuint64_t(view.base.row_stride) * 2 : 256};
  for (size_t k = 0; k < 3; ++k) {
    size[k + 2] = cuuint64_t(view.count[k]);
    stride[k + 1] = view.count[k] > 1 ? cuuint64_t(view.step[k]) * 2 : 256;
  }
  const std::array<cuuint32_t, 5> box{kBoxDims, cuuint32_t(box_rows), 1, 1, 1};
  const std::array<cuuint32_t, 5> every{1, 1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             element == DeviceElement::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             5, const_cast<void*>(view.base.first), size.data(), stride.data(), box.data(),
             every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "kernel cuda_sm90a: cuTensorMapEncodeTiled refused (error ",
        int(result), ") rows ", view.base.rows, " x ", view.base.row_stride, ", counts ",
        view.count[0], " ", view.count[1], " ", view.count[2], ", steps ", view.step[0], " ",
        view.step[1], " ", view.step[2], " (elements)");
  return map;
}

int multiprocessors() {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, current_device()),
             "asking for multiprocessors");
  return count;
}

class PreparedGroups final : public PreparedAttend {
 public:
  PreparedGroups(std::span<const AttendTask> tasks, const DeviceAttendOptions& options,
                 const GroupLauncher& launcher, MemoryLedger& ledger)
      : launcher_(launcher) {
    const int shares = options.concurrent ? kSharesWhenConcurrent : 1;
    const GroupPlan plan = plan_groups(
        tasks, options.causal,
        {.rows = launcher.rows, .keys = launcher.keys, .blocks = shares * multiprocessors()});
    blocks_ = int(plan.block_begin.size()) - 1;
    if (blocks_ == 0) return;
    const auto upload = [&](DeviceBuffer& buffer, const auto& list) {
      buffer = DeviceBuffer(ledger, "task_lists", int64_t(list.size() * sizeof(list[0])));
      return buffer.upload(list);
    };
    const EncodeTiled encode = encode_tiled();
    std::vector<CUtensorMap> maps;
    for (size_t i = 0; i < plan.views.size(); ++i)
      maps.push_back(tensor_map(encode, plan.views[i], options.element, options.head_dim,
                                i < plan.query_views ? launcher.rows : launcher.keys));
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
  std::unique_ptr<PreparedAttend> prepare(std::span<const AttendTask> tasks,
                                          const DeviceAttendOptions& options,
                                          MemoryLedger& ledger) const override {
    std::string refusal = why_unsupported(options);
    if (refusal.empty()) refusal = why_misaligned(tasks);
    check(refusal.empty(), "kernel cuda_sm90a: ", refusal);
    return std::make_unique<PreparedGroups>(tasks, options, *find(options), ledger);
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
