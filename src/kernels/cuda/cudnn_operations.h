// The functions of cuDNN that this project calls, opened at run time; its operation graphs: tensors
// [outer][inner][rows][columns], and operations on them.
//
//   OperationGraph graph;
//   const auto q = graph.tensor(1, CUDNN_DATA_BFLOAT16, {1, 12, 2048, 64}, strides_of_q);
//   ...
//   const auto s = graph.between(CUDNN_DATA_FLOAT, {1, 12, 2048, 2048});
//   graph.matmul(q, k, s);
//   graph.finish(handle);
#pragma once
#include <cudnn.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/dynamic_library.h"

namespace longnet {

struct Cudnn {
  DynamicLibrary library{"libcudnn.so.9"};
  decltype(&cudnnGetVersion) version = library.require("cudnnGetVersion");
  decltype(&cudnnCreate) create = library.require("cudnnCreate");
  decltype(&cudnnDestroy) destroy = library.require("cudnnDestroy");
  decltype(&cudnnSetStream) set_stream = library.require("cudnnSetStream");
  decltype(&cudnnGetErrorString) error_string = library.require("cudnnGetErrorString");
  decltype(&cudnnGetLastErrorString) last_error = library.require("cudnnGetLastErrorString");
  decltype(&cudnnBackendCreateDescriptor) create_descriptor =
      library.require("cudnnBackendCreateDescriptor");
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor =
      library.require("cudnnBackendDestroyDescriptor");
  decltype(&cudnnBackendSetAttribute) set = library.require("cudnnBackendSetAttribute");
  decltype(&cudnnBackendGetAttribute) get = library.require("cudnnBackendGetAttribute");
  decltype(&cudnnBackendFinalize) finalize = library.require("cudnnBackendFinalize");
  decltype(&cudnnBackendExecute) execute = library.require("cudnnBackendExecute");
};

inline const Cudnn& cudnn() {
  static const Cudnn instance;
  return instance;
}

inline void check_cudnn(cudnnStatus_t status, Located what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[1024] = "";
  cudnn().last_error(detail, sizeof detail);
  fail_at(concat("cuDNN, ", what.text, ": ", cudnn().error_string(status), " ", detail),
          what.where);
}

// A descriptor of the backend API.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnn().library.is_open(), "", cudnn().library.why_missing("cuDNN"));
    cudnnBackendDescriptor_t made = nullptr;
    check_cudnn(cudnn().create_descriptor(type, &made), "create descriptor");
    handle_.reset(made);
  }
  cudnnBackendDescriptor_t handle() const { return handle_.get(); }

  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    return set_raw(name, CUDNN_TYPE_INT64, values.size(), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.handle());
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    return set_raw(name, type, 1, &value);
  }
  Descriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      size_t count, const void* values) {
    check_cudnn(cudnn().set(handle(), name, type, int64_t(count), values), "set attribute");
    return *this;
  }
  Descriptor& finalize(Located what) {
    check_cudnn(cudnn().finalize(handle()), what);
    return *this;
  }

 private:
  struct Destroy {
    void operator()(void* descriptor) const { cudnn().destroy_descriptor(descriptor); }
  };
  std::unique_ptr<void, Destroy> handle_;
};

struct GraphTensorOptions {
  bool is_virtual = false, by_value = false;  // no memory holds it; a number from the host
  int64_t alignment = 16;
};

// Keeps every descriptor of an operation graph alive.
class OperationGraph {
 public:
  using Ref = const Descriptor*;
  using Dims = std::array<int64_t, 4>;

  Ref tensor(int64_t uid, cudnnDataType_t type, const Dims& dims, const Dims& strides,
             GraphTensorOptions kind = {}) {
    Descriptor& t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::vector<int64_t>{uid})
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::vector<int64_t>{kind.alignment})
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::vector(dims.begin(), dims.end()))
        .set(CUDNN_ATTR_TENSOR_STRIDES, std::vector(strides.begin(), strides.end()))
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, kind.is_virtual)
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, kind.by_value)
        .finalize("tensor");
    return &t;
  }
  // A float that the host hands over with each launch.
  Ref scalar(int64_t uid) {
    return tensor(uid, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, {.by_value = true});
  }
  static Dims dense(const Dims& dims) {
    return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
  }
  // A tensor that no memory holds.
  Ref between(cudnnDataType_t type, const Dims& dims, const Dims& strides) {
    return tensor(next_uid_++, type, dims, strides, {.is_virtual = true});
  }
  Ref between(cudnnDataType_t type, const Dims& dims) { return between(type, dims, dense(dims)); }

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
  // y: the elements of x by other dims and strides.
  void reshape(Ref x, Ref y) {
    Descriptor& op = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y)
        .finalize("reshape operation");
    ops_.push_back(op.handle());
  }

  void finish(cudnnHandle_t handle) {
    operations_ = &make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    operations_->set_raw(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ops_.size(),
                         ops_.data());
    if (handle != nullptr)
      operations_->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
    operations_->finalize("operation graph");
  }
  const Descriptor& operations() const { return *operations_; }

 private:
  static constexpr int64_t kFirstVirtual = 100;
  Descriptor& make(cudnnBackendDescriptorType_t type) { return keep_.emplace_back(type); }

  int64_t next_uid_ = kFirstVirtual;
  std::deque<Descriptor> keep_;  // a deque: pointers to them stay valid
  std::vector<cudnnBackendDescriptor_t> ops_;
  Descriptor* operations_ = nullptr;
};

// Engine configurations for a graph in the order in which cuDNN would try them. A graph without a
// handle is for `device`.
inline std::vector<Descriptor> configurations(const OperationGraph& graph,
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

}  // namespace longnet
