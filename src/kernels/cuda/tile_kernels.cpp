// The own kernels, compiled in several tile shapes:
//   `cuda`        mma.sync, on any strides
//   `cuda_sm90a`  TMA and wgmma on strided views, for compute capability 9.0
//
// Tests execute their PTX (src/emulation); what a GPU makes of it, scripts/gpu_validate.sh shows.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "kernels/cuda/attend_plan.h"
#include "kernels/cuda/backward_plan.h"
#include "kernels/cuda/compiled_shapes.h"

namespace longnet {
namespace {

template <class Inputs>
using Shapes = std::span<const CompiledShape<Inputs>>;

// Returns the shapes of the smallest padded head dimension that fits.
template <class Inputs>
std::vector<CompiledShape<Inputs>> fitting_shapes(Shapes<Inputs> shapes, int64_t head_dim) {
  std::vector<CompiledShape<Inputs>> found;
  for (const CompiledShape<Inputs>& s : shapes)
    if (s.head_dim >= head_dim && (found.empty() || found.front().head_dim == s.head_dim))
      found.push_back(s);
  return found;
}

// Returns the one of fitting_shapes() that is taken by itself.
template <class Inputs>
CompiledShape<Inputs> usual_shape(const std::vector<CompiledShape<Inputs>>& fitting, bool causal) {
  const auto found = std::ranges::find(fitting, causal, &CompiledShape<Inputs>::causal);
  return found != fitting.end() ? *found : fitting.front();
}

// The usual one first.
template <class Inputs>
std::vector<std::string> shape_names(Shapes<Inputs> shapes, int64_t head_dim, bool causal) {
  const auto fitting = fitting_shapes(shapes, head_dim);
  std::vector<std::string> names;
  for (const auto& s : fitting) names.emplace_back(s.name);
  std::ranges::partition(
      names, [&](const std::string& name) { return name == usual_shape(fitting, causal).name; });
  return names;
}

template <class Inputs>
void launch(const CompiledShape<Inputs>& shape, Inputs inputs, int64_t blocks,
            const Stream& stream) {
  check(blocks < (int64_t{1} << 31), "too many tiles for one launch: ", blocks);
  if (blocks == 0) return;
  const auto* const kernel = reinterpret_cast<const void*>(shape.kernel);
  // Cheap, and needed once per device and kernel.
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes),
      "shared memory of the attention kernel");
  void* parameters[] = {&inputs};
  check_cuda(cudaLaunchKernel(kernel, dim3(unsigned(blocks)), dim3(unsigned(shape.threads)),
                              parameters, size_t(shape.shared_bytes), stream.handle()),
             "launch of the attention kernel");
}

AttendInputs attend_inputs(const DeviceAttendOptions& options) {
  return {.head_dim = int32_t(options.head_dim),
          .causal = options.causal,
          .merge = options.merge,
          .short_o = options.output_dtype != DType::kFloat32,
          .scale_log2 = std::numbers::log2e_v<float> / std::sqrt(float(options.head_dim)),
          .output_scale = options.output_scale};
}

Prepared prepare_launch(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                        const CompiledShape<TileInputs>& shape, MemoryLedger& ledger) {
  const TilePlan plan = plan_tiles(grids, options.causal, shape.rows);
  Prepared work;
  const TileInputs inputs{attend_inputs(options), work.upload(plan.tasks, ledger),
                          work.upload(plan.runs, ledger), work.upload(plan.tiles, ledger)};
  work.then([=, blocks = int64_t(plan.tiles.size())](const Stream& stream) {
    launch(shape, inputs, blocks, stream);
  });
  return work;
}

// ---- cuda_sm90a ----

constexpr int kSharesWhenConcurrent = 4;  // blocks per multiprocessor, one after the other
// Blocks of a kernel that does lists of tiles.
int64_t persistent_blocks(const DeviceAttendOptions& options) {
  return int64_t{options.concurrent ? kSharesWhenConcurrent : 1} * current_multiprocessors();
}

constexpr uint32_t kBoxDims = 64;  // elements of 16 bits: the 128 bytes of the swizzle

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

// [head_dim][rows][3 dimensions] of bf16, read in boxes of 64 dims x `box_rows`, swizzled by 128
// bytes; what is outside reads as zero. TMA instructions read it instead of an address. Throws
// Error with the driver's refusal.
CUtensorMap encode_tensor_map(const TensorView& view, int64_t head_dim, int box_rows) {
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
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(view.first), size.data(),
             stride.data(), box.data(), every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "kernel cuda_sm90a: cuTensorMapEncodeTiled refused (error ",
        int(result), ") rows ", view.rows, " x ", view.row_stride, ", counts ", view.count[0], " ",
        view.count[1], " ", view.count[2], ", steps ", view.step_bytes[0], " ", view.step_bytes[1],
        " ", view.step_bytes[2], " (bytes)");
  return map;
}

// Boxes of `query_rows` where a view is of queries, else of `key_rows`.
const void* upload_maps(const std::vector<TensorView>& views, int64_t head_dim, int query_rows,
                        int key_rows, Prepared& work, MemoryLedger& ledger) {
  std::vector<CUtensorMap> maps;
  for (const TensorView& view : views)
    maps.push_back(encode_tensor_map(view, head_dim, view.of_queries ? query_rows : key_rows));
  return work.upload(maps, ledger);
}

Prepared prepare_launch(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                        const CompiledShape<GroupInputs>& shape, MemoryLedger& ledger) {
  const GroupPlan plan = plan_groups(
      grids, options.causal,
      {.rows = shape.rows, .keys = shape.keys, .blocks = int(persistent_blocks(options))});
  Prepared work;
  const GroupInputs inputs{
      attend_inputs(options),
      work.upload(plan.tasks, ledger),
      work.upload(plan.runs, ledger),
      work.upload(plan.tiles, ledger),
      work.upload(plan.block_begin, ledger),
      work.upload(plan.keyless, ledger),
      int32_t(plan.keyless.size()),
      int32_t(plan.views.size()),
      upload_maps(plan.views, options.head_dim, shape.rows, shape.keys, work, ledger)};
  work.then([=, blocks = int64_t(plan.block_begin.size()) - 1](const Stream& stream) {
    launch(shape, inputs, blocks, stream);
  });
  return work;
}

// ---- backward ----

// dQ by one launch, dK and dV by another. `by_tma`: the kernels of cuda_sm90a.
Prepared prepare_backward_launches(std::span<const BackwardGrid> grids,
                                   const DeviceAttendOptions& options,
                                   const CompiledBackward& shape, bool by_tma,
                                   MemoryLedger& ledger) {
  const BackwardPlan plan = plan_backward(grids, options.causal, shape.queries.rows);
  const float scale = 1 / std::sqrt(float(options.head_dim));
  Prepared work;
  BackwardInputs inputs{.head_dim = int32_t(options.head_dim),
                        .causal = options.causal,
                        .scale = scale,
                        .scale_log2 = attend_inputs(options).scale_log2,
                        .output_scale = options.output_scale,
                        .tasks = work.upload(plan.tasks, ledger),
                        .runs = work.upload(plan.runs, ledger),
                        .sources = work.upload(plan.sources, ledger),
                        .groups = work.upload(plan.groups, ledger),
                        .tiles = nullptr,
                        .block_begin = nullptr,
                        .num_views = 0,
                        .maps = nullptr};
  for (const bool of_keys : {false, true}) {
    const CompiledShape<BackwardInputs>& kernel = of_keys ? shape.keys : shape.queries;
    int64_t blocks = 0;
    if (by_tma) {
      const BackwardBlocks lists = backward_blocks(plan, of_keys, options.causal, kernel.rows,
                                                   int(persistent_blocks(options)));
      blocks = std::ssize(lists.begin) - 1;
      inputs.tiles = work.upload(lists.tiles, ledger);
      inputs.block_begin = work.upload(lists.begin, ledger);
      inputs.num_views = int32_t(plan.views.size());
      const int columns = kernel.keys, rows = kBackwardBoxRows;
      inputs.maps = upload_maps(plan.views, options.head_dim, of_keys ? columns : rows,
                                of_keys ? rows : columns, work, ledger);
    } else {
      const std::vector<BackwardTile>& tiles = of_keys ? plan.key_tiles : plan.query_tiles;
      blocks = std::ssize(tiles);
      inputs.tiles = work.upload(tiles, ledger);
    }
    work.then([=, in = inputs](const Stream& stream) { launch(kernel, in, blocks, stream); });
  }
  return work;
}

template <class Inputs>
class ShapedKernel final : public DeviceKernel {
 public:
  // `shape`: a shape's name; empty: the default of each head_dim.
  ShapedKernel(std::string name, Shapes<Inputs> shapes, std::span<const CompiledBackward> backward,
               std::string_view shape)
      : name_(std::move(name)), shapes_(shapes), backward_(backward), shape_(shape) {}
  bool merges() const override { return true; }
  Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                   MemoryLedger& ledger) const override {
    const auto shape = find(options);
    std::string refusal = why_head_dim_unsupported(options.head_dim, most_head_dim());
    if (refusal.empty() && !shape)
      refusal = concat("no tile shape ", shape_, " for head_dim ", options.head_dim);
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel ", name_, ": ", refusal);
    return prepare_launch(grids, options, *shape, ledger);
  }

  Prepared prepare_backward(std::span<const BackwardGrid> grids, const DeviceAttendOptions& options,
                            MemoryLedger& ledger) const override {
    std::string refusal =
        why_head_dim_unsupported(options.head_dim, backward_.back().keys.head_dim);
    if (refusal.empty()) refusal = why_misaligned(grids);
    check(refusal.empty(), "kernel ", name_, ", backward pass: ", refusal);
    const auto shape = std::ranges::find_if(
        backward_, [&](const CompiledBackward& s) { return s.keys.head_dim >= options.head_dim; });
    return prepare_backward_launches(grids, options, *shape, std::is_same_v<Inputs, GroupInputs>,
                                     ledger);
  }

 private:
  int64_t most_head_dim() const {
    return std::ranges::max(shapes_, {}, &CompiledShape<Inputs>::head_dim).head_dim;
  }
  // The shape that was asked for, else the usual one.
  std::optional<CompiledShape<Inputs>> find(const DeviceAttendOptions& options) const {
    auto known = fitting_shapes(shapes_, options.head_dim);
    if (!shape_.empty()) std::erase_if(known, [&](const auto& s) { return s.name != shape_; });
    if (known.empty()) return std::nullopt;
    return usual_shape(known, options.causal);
  }

  std::string name_;
  Shapes<Inputs> shapes_;
  std::span<const CompiledBackward> backward_;
  std::string shape_;
};

}  // namespace

std::vector<std::string> cuda_kernel_shapes(int64_t head_dim, bool causal) {
  return shape_names(tile_shapes(), head_dim, causal);
}

std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view shape) {
  return std::make_unique<ShapedKernel<TileInputs>>("cuda", tile_shapes(), tile_backward_shapes(),
                                                    shape);
}

std::string why_sm90a_absent() {
  const DeviceReport report = describe_devices();
  for (const DeviceInfo& device : report.devices)
    if (device.major != 9 || device.minor != 0)
      return concat("kernel cuda_sm90a needs compute capability 9.0, device ", device.index, " (",
                    device.name, ") has ", device.major, ".", device.minor, ": use kernel cuda");
  return "";
}

std::vector<std::string> sm90a_kernel_shapes(int64_t head_dim, bool causal) {
  return shape_names(group_shapes(), head_dim, causal);
}

std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view shape) {
  return std::make_unique<ShapedKernel<GroupInputs>>("cuda_sm90a", group_shapes(),
                                                     group_backward_shapes(), shape);
}

}  // namespace longnet
