// GPUs of this machine: memory that a ledger counts, streams, events. <cuda_runtime.h> stays in
// device.cpp.
//
//   use_device(0);                                   // this thread works on device 0
//   DeviceBuffer x(ledger, "kv", bytes);             // throws DeviceOutOfMemory
//   Stream compute;  Event done;
//   compute.fill(x.data(), 0, x.size());  done.record(compute);  other.wait(done);
//
// Builds without CUDA have the same functions: no device is found, and everything else throws.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/tagged_memory.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace longnet {

// Throws Error with the name and text of the cudaError_t `status` unless it is cudaSuccess.
void check_cuda(int status, Located what);

struct DeviceInfo {
  int index = 0;
  std::string name{}, uuid{};  // equal uuid: the same device
  int major = 0, minor = 0;    // compute capability
  int multiprocessors = 0, clock_khz = 0;
  int64_t memory_bytes = 0, free_bytes = 0, l2_bytes = 0;
};

// Dense 16-bit FLOP per clock and multiprocessor of the tensor cores: NVIDIA's architecture white
// papers for A100 (2048), H100 (4096) and B200 (8192); 0 for others.
inline double tensor_flops_per_clock(const DeviceInfo& d) {
  const int capability = 10 * d.major + d.minor;
  return capability == 80 ? 2048 : capability == 90 ? 4096 : capability == 100 ? 8192 : 0;
}

// The devices found, for `lnbench env` and for reasons why a point cannot run. Never throws.
struct DeviceReport {
  bool built_in = false;   // built with CUDA
  int toolkit = 0;         // CUDA version of the build, e.g. 13000
  int driver = 0;          // CUDA version that the driver supports, 0 without one
  std::string unusable{};  // empty when there is at least one device, else why not
  std::vector<DeviceInfo> devices{};
};
// `with_free_memory`: makes a context on every device, which costs memory and time.
DeviceReport describe_devices(bool with_free_memory = false);

// Text of a CUDA version: 13000 -> "13.0".
inline std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The version of NCCL or cuDNN as text: 22809 -> "2.28.9".
inline std::string library_version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// The calling thread works on this device from now on. There is no way back: setting a device makes
// a context there, which takes hundreds of megabytes.
void use_device(int device);

// The device refused an allocation. A std::bad_alloc, so that callers treat it like the host's.
class DeviceOutOfMemory : public std::bad_alloc {
 public:
  explicit DeviceOutOfMemory(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// Throws DeviceOutOfMemory when the ledger's limit does not admit a buffer.
inline void require_admitted(const MemoryLedger& ledger, const std::string& tag, int64_t bytes) {
  if (!ledger.admits(bytes))
    throw DeviceOutOfMemory("memory.limit_bytes admits " + std::to_string(ledger.limit()) +
                            " bytes, " + std::to_string(ledger.now_bytes()) + " are taken, " + tag +
                            " wants " + std::to_string(bytes));
}

// Memory of the current device, 256-byte aligned.
class DeviceBuffer : public LedgerBuffer {
 public:
  // kShared: other processes may open it (export_memory). The driver puts small allocations into
  // one block of 2 MiB and exports whole blocks: shared memory has blocks of its own.
  enum class Kind { kPrivate, kShared };
  DeviceBuffer() = default;
  DeviceBuffer(MemoryLedger& ledger, const std::string& tag, int64_t bytes,
               Kind kind = Kind::kPrivate);
  // Copies a host list to its begin; returns when it is there.
  template <class T>
  T* upload(const std::vector<T>& list) {
    upload_bytes(list.data(), int64_t(list.size() * sizeof(T)));
    return reinterpret_cast<T*>(data());
  }

 private:
  void upload_bytes(const void* from, int64_t bytes);
};

// Destroys the object behind a handle of the runtime, and frees page-locked memory.
struct DestroyHandle {
  void operator()(std::byte* page_locked) const noexcept;
  void operator()(CUstream_st* stream) const noexcept;
  void operator()(CUevent_st* event) const noexcept;
  void operator()(CUgraphExec_st* graph) const noexcept;
};
template <class T>
using DeviceHandle = std::unique_ptr<T, DestroyHandle>;

// Page-locked host memory, for copies that overlap with kernels.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t size() const { return bytes_; }

 private:
  DeviceHandle<std::byte> data_;
  int64_t bytes_ = 0;
};

class Event;

// A queue of work in order. Copies find out by themselves whether addresses are on the device.
class Stream {
 public:
  enum class Priority { kNormal, kHigh };
  explicit Stream(Priority priority = Priority::kNormal);
  void wait(const Event& event) const;
  void copy(void* into, const void* from, int64_t bytes) const;
  void fill(void* at, int byte, int64_t bytes) const;
  void synchronize() const;  // throws the error of work on it
  CUstream_st* handle() const { return handle_.get(); }

 private:
  DeviceHandle<CUstream_st> handle_;
};

class Event {
 public:
  enum class Kind { kTiming, kOrder, kShared };  // kShared: other processes may open it
  explicit Event(Kind kind = Kind::kOrder);
  void record(const Stream& stream) const;
  void synchronize() const;
  bool over() const;  // throws the error of work before it
  // Seconds from `begin` to this one; both recorded, both kTiming.
  double seconds_since(const Event& begin) const;
  CUevent_st* handle() const { return handle_.get(); }

  // 64 bytes that open the same event in another process.
  std::string export_handle() const;
  static Event import_handle(const std::string& handle);

 private:
  explicit Event(CUevent_st* handle) : handle_(handle) {}
  DeviceHandle<CUevent_st> handle_;
};

// The work enqueued on `stream` while `record` ran, launched as one.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& record);
  void launch(const Stream& stream) const;

 private:
  DeviceHandle<CUgraphExec_st> handle_;
};

// Device memory of one process, for another one on the same machine.
std::string export_memory(const void* allocation);  // begin of a kShared DeviceBuffer
void* import_memory(const std::string& handle);
void close_memory(void* imported) noexcept;
// Makes copies from `other`'s memory by this thread's device go straight, where the machine can;
// else they go through the host.
void reach_device(int other);

std::string device_bus_id(int device);  // "0000:1b:00.0", or "" when there is none
int current_device();                   // the calling thread's
int current_multiprocessors();          // on the calling thread's device
int64_t device_free_bytes();            // on the current device, as the driver counts it

}  // namespace longnet
