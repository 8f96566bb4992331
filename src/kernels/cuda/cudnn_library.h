// The functions of cuDNN that this project calls, opened at run time, and its descriptors.
#pragma once
#include <cudnn.h>

#include <cstdint>
#include <memory>
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
    check(cudnn().library.is_open(), "cuDNN is missing: ", cudnn().library.error());
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

}  // namespace longnet
