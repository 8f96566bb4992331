#include "kernels/cuda/cudnn_graph.h"

#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/cudnn_library.h"

namespace longnet {
namespace {

// LSEs lie behind the rows of a partial, one float per row: a head's first one may be anywhere.
constexpr int64_t kLseAlignment = sizeof(float);

enum Uid : int64_t { kQ = 1, kK, kV, kO, kLse, kScale, kHidden, kFirstVirtual = 100 };

std::vector<int64_t> with_lanes(const std::array<int64_t, 3>& strides) {
  return {strides[0], strides[1], strides[2], 1};
}

// Keeps every descriptor of an operation graph alive.
class Graph4D {
 public:
  Graph4D(const SdpaShape& s, int64_t lse_alignment, cudnnHandle_t handle);
  const Descriptor& operations() const { return *operations_; }

 private:
  using Ref = const Descriptor*;
  Descriptor& make(cudnnBackendDescriptorType_t type) { return keep_.emplace_back(type); }
  struct TensorKindOf {
    bool is_virtual = false, by_value = false;
    int64_t alignment = 16;
  };
  Ref tensor(int64_t uid, cudnnDataType_t type, const std::vector<int64_t>& dims,
             const std::vector<int64_t>& strides, TensorKindOf kind) {
    Descriptor& t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::vector<int64_t>{uid})
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::vector<int64_t>{kind.alignment})
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims)
        .set(CUDNN_ATTR_TENSOR_STRIDES, strides)
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind.is_virtual)
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind.by_value)
        .finalize("tensor");
    return &t;
  }
  Ref scalar(Uid uid) {
    return tensor(uid, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, {.by_value = true});
  }
  // A virtual tensor [outer][inner][rows][columns].
  Ref between(cudnnDataType_t type, int64_t columns) {
    return tensor(next_uid_++, type, {s_.outer, s_.inner, s_.rows, columns},
                  {s_.inner * s_.rows * columns, s_.rows * columns, columns, 1},
                  {.is_virtual = true});
  }
  Ref scores(cudnnDataType_t type) { return between(type, s_.keys); }
  Ref per_row() { return between(CUDNN_DATA_FLOAT, 1); }
  void matmul(Ref a, Ref b, Ref c) {
    Descriptor& math = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    math.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .finalize("matmul");
    Descriptor& op = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a)
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b)
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c)
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, math)
        .finalize("matmul operation");
    ops_.push_back(op.handle());
  }
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    Ref x, b = nullptr, t = nullptr;
    Ref y = nullptr;
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    int64_t axis = -1;
  };
  void pointwise(const Pointwise& p) {
    Descriptor& math = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    math.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, p.mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, p.precision);
    if (p.axis >= 0) math.set(CUDNN_ATTR_POINTWISE_AXIS, std::vector<int64_t>{p.axis});
    math.finalize("pointwise");
    Descriptor& op = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, math)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *p.x);
    if (p.b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *p.b);
    if (p.t) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *p.t);
    op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *p.y).finalize("pointwise operation");
    ops_.push_back(op.handle());
  }
  void reduce(cudnnReduceTensorOp_t operation, Ref x, Ref y) {
    Descriptor& math = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    math.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, operation)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .finalize("reduction");
    Descriptor& op = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, math)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y)
        .finalize("reduction operation");
    ops_.push_back(op.handle());
  }
  // Keys that a row may not see get the lowest score.
  Ref hide(Ref x) {
    Ref row = scores(CUDNN_DATA_INT32), column = scores(CUDNN_DATA_INT32);
    Ref visible = scores(CUDNN_DATA_BOOLEAN), out = scores(CUDNN_DATA_FLOAT);
    pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = row, .axis = 2});
    pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = column, .axis = 3});
    const bool own = s_.mask == ViewMask::kUpToOwn;
    pointwise({.mode = own ? CUDNN_POINTWISE_CMP_GE : CUDNN_POINTWISE_CMP_GT,
               .x = row,
               .b = column,
               .y = visible,
               .precision = CUDNN_DATA_BOOLEAN});
    pointwise({.mode = CUDNN_POINTWISE_BINARY_SELECT,
               .x = x,
               .b = scalar(kHidden),
               .t = visible,
               .y = out});
    return out;
  }

  SdpaShape s_;
  int64_t next_uid_ = kFirstVirtual;
  std::deque<Descriptor> keep_;  // a deque: pointers to them stay valid
  std::vector<cudnnBackendDescriptor_t> ops_;
  Descriptor* operations_ = nullptr;
};

Graph4D::Graph4D(const SdpaShape& s, int64_t lse_alignment, cudnnHandle_t handle) : s_(s) {
  const cudnnDataType_t type =
      s.element == DeviceElement::kFloat16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
  const std::vector<int64_t> rows{s.outer, s.inner, s.rows, s.head_dim};
  Ref q = tensor(kQ, type, rows, with_lanes(s.q), {});
  Ref k = tensor(kK, type, {s.outer, s.inner, s.head_dim, s.keys}, {s.k[0], s.k[1], 1, s.k[2]}, {});
  Ref v = tensor(kV, type, {s.outer, s.inner, s.keys, s.head_dim}, with_lanes(s.k), {});
  Ref o = tensor(kO, type, rows, with_lanes(s.o), {});
  Ref lse = tensor(kLse, CUDNN_DATA_FLOAT, {s.outer, s.inner, s.rows, 1}, with_lanes(s.lse),
                   {.alignment = lse_alignment});

  Ref raw = scores(CUDNN_DATA_FLOAT), x = scores(CUDNN_DATA_FLOAT);
  matmul(q, k, raw);
  pointwise({.mode = CUDNN_POINTWISE_MUL, .x = raw, .b = scalar(kScale), .y = x});
  if (s.mask != ViewMask::kNone) x = hide(x);
  Ref max = per_row(), sum = per_row(), log = per_row();
  Ref shifted = scores(CUDNN_DATA_FLOAT), e = scores(CUDNN_DATA_FLOAT), p = scores(type);
  reduce(CUDNN_REDUCE_TENSOR_MAX, x, max);
  pointwise({.mode = CUDNN_POINTWISE_SUB, .x = x, .b = max, .y = shifted});
  pointwise({.mode = CUDNN_POINTWISE_EXP, .x = shifted, .y = e});
  reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  pointwise({.mode = CUDNN_POINTWISE_LOG, .x = sum, .y = log});
  pointwise({.mode = CUDNN_POINTWISE_ADD, .x = max, .b = log, .y = lse});
  pointwise({.mode = CUDNN_POINTWISE_DIV, .x = e, .b = sum, .y = p});
  matmul(p, v, o);
  operations_ = &make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  operations_->set_raw(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ops_.size(),
                       ops_.data());
  if (handle != nullptr)
    operations_->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  operations_->finalize("operation graph");
}

// The device by its JSON text, or by its number.
Descriptor describe_device(const std::string& json) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set_raw(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.size(),
                 json.data());
  return std::move(device.finalize("device description"));
}
Descriptor describe_device(int32_t index) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, index);
  return std::move(device.finalize("device"));
}

// Engine configurations in the order in which cuDNN would try them.
std::vector<Descriptor> configurations(const Graph4D& graph,
                                       const std::optional<Descriptor>& device) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.operations())
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  if (device) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device);
  heuristics.finalize("heuristics");
  constexpr size_t kMost = 8;
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> handles;
  while (found.size() < kMost)
    handles.push_back(found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).handle());
  int64_t count = 0;
  check_cudnn(cudnn().get(heuristics.handle(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                          CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &count, handles.data()),
              "heuristics' results");
  while (int64_t(found.size()) > count) found.pop_back();
  return found;
}

// Handles may not be shared by threads.
cudnnHandle_t handle_of_this_thread() {
  struct Destroy {
    void operator()(cudnnContext* handle) const { cudnn().destroy(handle); }
  };
  static thread_local std::map<int, std::unique_ptr<cudnnContext, Destroy>> handles;  // by device
  auto& handle = handles[current_device()];
  if (!handle) {
    cudnnHandle_t made = nullptr;
    check_cudnn(cudnn().create(&made), "cudnnCreate");
    handle.reset(made);
  }
  return handle.get();
}

// A plan is made with a handle, as all of cuDNN's users do, or where that is refused from the
// description of the device.
class GraphPlan final : public SdpaPlan {
 public:
  // `lse_alignment`: bytes that the plan may rely on.
  GraphPlan(const SdpaShape& shape, int64_t lse_alignment, bool by_handle)
      : shape_(shape),
        lse_alignment_(lse_alignment),
        handle_(by_handle ? handle_of_this_thread() : nullptr),
        graph_(shape, lse_alignment, handle_) {
    if (!by_handle) device_ = describe_device(current_device());
  }
  // Returns false, with the reasons added to `reasons`, where no configuration makes a plan.
  bool build(std::string& reasons) {
    for (const Descriptor& configuration : configurations(graph_, device_)) try {
        build(configuration);
        return true;
      } catch (const Error& e) {
        add_reason(reasons, e);
      }
    return false;
  }
  static void add_reason(std::string& reasons, const Error& e) {
    reasons += concat(reasons.empty() ? "" : "; ", e.what());
  }

  int64_t workspace_bytes() const override { return workspace_; }
  void launch(const SdpaPointers& at, void* workspace, const Stream& stream) const override;

 private:
  void build(const Descriptor& configuration) {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (device_)
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *device_);
    else
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration).finalize("plan");
    check_cudnn(cudnn().get(plan.handle(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                            CUDNN_TYPE_INT64, 1, nullptr, &workspace_),
                "workspace");
    plan_ = std::move(plan);
  }

  SdpaShape shape_;
  int64_t lse_alignment_;
  cudnnHandle_t handle_;
  Graph4D graph_;
  std::optional<Descriptor> device_, plan_;
  int64_t workspace_ = 0;
};

void GraphPlan::launch(const SdpaPointers& at, void* workspace, const Stream& stream) const {
  check(reinterpret_cast<uintptr_t>(at.lse) % size_t(lse_alignment_) == 0,
        "cuDNN's plan wants LSEs aligned to ", lse_alignment_, " bytes: use kernel cuda");
  const cudnnHandle_t handle = handle_of_this_thread();
  check_cudnn(cudnn().set_stream(handle, stream.handle()), "cudnnSetStream");
  float scale = 1.0f / std::sqrt(float(shape_.head_dim));
  float hidden = std::numeric_limits<float>::lowest();
  std::vector<int64_t> uids{kQ, kK, kV, kO, kLse, kScale};
  std::vector<const void*> data{at.q, at.k, at.v, at.o, at.lse, &scale};
  if (shape_.mask != ViewMask::kNone) {
    uids.push_back(kHidden);
    data.push_back(&hidden);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids)
      .set_raw(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.size(), data.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finalize("variant pack");
  check_cudnn(cudnn().execute(handle, plan_->handle(), pack.handle()), "execute");
}

std::unique_ptr<const SdpaPlan> make_plan(const SdpaShape& shape) {
  const std::string misaligned = why_misaligned(shape);
  check(misaligned.empty(), "cuDNN: ", misaligned);
  std::string reasons;
  // Engines may insist on the alignment that cuDNN's own frontend gives to every tensor.
  for (const bool by_handle : {true, false})
    for (const int64_t lse_alignment : {kLseAlignment, int64_t{16}}) try {
        auto plan = std::make_unique<GraphPlan>(shape, lse_alignment, by_handle);
        if (plan->build(reasons)) return plan;
      } catch (const Error& e) {
        GraphPlan::add_reason(reasons, e);
      }
  throw Error("cuDNN offers no plan for attention of ", shape.outer, " x ", shape.inner, " x ",
              shape.rows, " rows, ", shape.keys, " keys, head_dim ", shape.head_dim,
              reasons.empty() ? "" : ": ", reasons);
}

}  // namespace

std::string why_cudnn_absent() {
  if (!cudnn().library.is_open())
    return concat("cuDNN is not on the library path: ", cudnn().library.error(),
                  "; use kernel cuda");
  const auto version = int(cudnn().version());
  if (version / 10000 != CUDNN_MAJOR || version < 90800)
    return concat("cuDNN ", library_version_text(version), " was found, this build needs ",
                  CUDNN_MAJOR, ".8 or a newer ", CUDNN_MAJOR,
                  ": put one on the library path, or use kernel cuda");
  return "";
}

std::string describe_cudnn() {
  std::string why = why_cudnn_absent();
  if (!why.empty()) return why;
  return concat(library_version_text(int(cudnn().version())), " (headers ", CUDNN_MAJOR, ".",
                CUDNN_MINOR, ".", CUDNN_PATCHLEVEL, ")");
}

int64_t cudnn_configurations(const SdpaShape& shape, const std::string& device_json) {
  const std::string misaligned = why_misaligned(shape);
  check(misaligned.empty(), "cuDNN: ", misaligned);
  const Graph4D graph(shape, kLseAlignment, nullptr);
  return int64_t(configurations(graph, describe_device(device_json)).size());
}

const SdpaPlan& sdpa_plan(const SdpaShape& shape) {
  // Plans of this thread, because a plan belongs to the handle that it was made with. Never freed:
  // cuDNN's own statics may be destroyed before ours.
  using Plans = std::map<std::pair<int, SdpaShape>, std::unique_ptr<const SdpaPlan>>;
  static thread_local Plans& plans = *std::make_unique<Plans>().release();
  auto& plan = plans[{current_device(), shape}];
  if (!plan) plan = make_plan(shape);
  return *plan;
}

}  // namespace longnet
