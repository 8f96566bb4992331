#include "emulation/emulated_device.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/stopwatch.h"

namespace {

constexpr std::chrono::seconds kPatience{20};
constexpr size_t kAlignment = 256;

// All streams of all ranks, which are threads, under one lock.
std::recursive_mutex& world() {
  static std::recursive_mutex mutex;
  return mutex;
}
std::condition_variable_any more_work;
size_t enqueued = 0;

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}
int device_count = int(from_environment("LONGNET_EMULATED_GPUS", 1));
const int64_t device_bytes = from_environment("LONGNET_EMULATED_GPU_BYTES", int64_t{4} << 30);
std::map<int, int64_t> taken_bytes;  // bytes in use, by device
struct Block {
  int device;
  int64_t bytes;
};
std::map<const std::byte*, Block> buffers;  // by their first byte
thread_local int this_device = 0;
thread_local bool recording = false;  // this thread records a graph

// Does `work`. Returns false where that throws NotYet, as soon as more is enqueued, or after
// `wait`; throws Error where nothing was enqueued for kPatience. Not for use in work.
bool is_done(const std::function<void()>& work, std::chrono::milliseconds wait) {
  static thread_local size_t seen = 0;
  static thread_local std::chrono::steady_clock::time_point since;  // enqueued == seen from then on
  std::unique_lock lock(world());
  try {
    return work(), true;
  } catch (const longnet::NotYet& reason) {
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(seen, enqueued) != enqueued) since = now;
    longnet::check(now < since + kPatience, "a rank waits for ever: ", reason.what());
    more_work.wait_for(lock, wait, [] { return enqueued != seen; });
    return false;
  }
}
void until_done(const std::function<void()>& work) {
  while (!is_done(work, kPatience)) continue;
}

// The work queue of a stream, with a clock of its own: an item takes as long as the host needs for
// it, and begins when the work that it waits for has ended.
struct Work {
  std::deque<std::function<void()>> queue;
  std::vector<double> ends;  // end times of the items done
  double clock = 0;
  bool busy = false;

  double time_at(size_t position) const { return position == 0 ? 0 : ends.at(position - 1); }
  void run_until(size_t position);
};

// The stream whose work is being executed, and until when its clock has counted the host's time.
Work* running = nullptr;
double counted_until = 0;

void run_on(Work* next) {
  const double now = longnet::steady_seconds();
  if (running != nullptr) running->clock += now - counted_until;
  counted_until = now;
  running = next;
}

// Enters a stream's work, and leaves it also when an exception does.
class Inside {
 public:
  explicit Inside(Work& work) : work_(work) { run_on(&work), work.busy = true; }
  ~Inside() { run_on(outer_), work_.busy = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Work& work_;
  Work* outer_ = running;
};

void Work::run_until(size_t position) {
  if (ends.size() < position) {
    longnet::check(!busy, "a stream waits for itself: work ", ends.size(), " of ", position);
    const Inside inside(*this);
    while (ends.size() < position) {
      queue[ends.size()]();
      queue[ends.size()] = nullptr;
      run_on(this);
      ends.push_back(clock);
    }
  }
  if (running != nullptr) running->clock = std::max(running->clock, time_at(position));
}

}  // namespace

struct CUstream_st {
  std::shared_ptr<Work> work = std::make_shared<Work>();
  int device = this_device;
  bool recorded = false;  // into a graph: no waits on the host or for other streams
};
struct CUevent_st {
  int device = this_device;
  std::shared_ptr<Work> work;
  size_t position = 0;
  double time() const { return work->time_at(position); }
  void run() const {
    longnet::check(work != nullptr, "an event that was never recorded");
    work->run_until(position);
  }
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

namespace longnet {

void emulate_launch(CUstream_st* stream, std::function<void()> kernel) {
  const std::lock_guard lock(world());
  check(stream->device == this_device, "a launch on a stream of device ", stream->device,
        " by a thread on device ", this_device);
  stream->work->queue.push_back(std::move(kernel));
  ++enqueued;
  more_work.notify_all();
}
std::function<void()> emulate_all_before(CUstream_st* stream) {
  const std::lock_guard lock(world());
  return
      [work = stream->work, position = stream->work->queue.size()] { work->run_until(position); };
}
void emulate_devices(int count) { device_count = count; }
std::pair<const std::byte*, const std::byte*> emulated_buffer(const void* at) {
  const std::lock_guard lock(world());
  auto found = buffers.upper_bound(static_cast<const std::byte*>(at));
  if (found == buffers.begin()) return {};
  --found;
  return {found->first, found->first + found->second.bytes};
}

DeviceReport describe_devices(bool) {
  DeviceReport report{.built_in = true};
  for (int i = 0; i < device_count; ++i) {
    DeviceInfo info{.index = i, .name = "emulated GPU", .uuid = concat("e", i)};
    info.major = 9;
    info.multiprocessors = 4;
    info.clock_khz = 1'000'000;
    info.memory_bytes = info.free_bytes = device_bytes;
    info.l2_bytes = int64_t{1} << 20;
    report.devices.push_back(info);
  }
  return report;
}
void use_device(int device) { this_device = device; }
void reach_device(int other) { check(other < device_count, "no device ", other); }

namespace {

// Memory is NaN before it is written (the first 16 MiB of it).
void* allocate(const MemoryLedger& ledger, const std::string& tag, int64_t bytes) {
  check(bytes >= 0, "a buffer of ", bytes, " bytes");
  require_admitted(ledger, tag, bytes);
  check(!recording, "an allocation while a graph is recorded");
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(world());
  if (taken_bytes[this_device] + bytes > device_bytes)
    throw DeviceOutOfMemory(concat("the device refused ", bytes, " bytes for ", tag, "; ",
                                   device_bytes - taken_bytes[this_device], " are free"));
  taken_bytes[this_device] += bytes;
  const size_t whole = (size_t(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  void* const data = std::aligned_alloc(kAlignment, whole);
  buffers[static_cast<std::byte*>(data)] = {this_device, bytes};
  std::memset(data, 0xFF, std::min<size_t>(whole, size_t{16} << 20));
  return data;
}

void free_on_device(void* data) {
  const std::lock_guard lock(world());
  const auto found = buffers.find(static_cast<std::byte*>(data));
  taken_bytes[found->second.device] -= found->second.bytes;
  buffers.erase(found);
  std::free(data);
}

}  // namespace

DeviceBuffer::DeviceBuffer(MemoryLedger& ledger, const std::string& tag, int64_t bytes, Kind)
    : LedgerBuffer(ledger, tag, bytes, allocate(ledger, tag, bytes), free_on_device) {}
void DeviceBuffer::upload_bytes(const void* from, int64_t bytes) {
  check(bytes <= size(), "an upload of ", bytes, " bytes into ", size());
  check(!recording, "an upload while a graph is recorded");
  if (bytes > 0) std::memcpy(data(), from, size_t(bytes));
}

PinnedBuffer::PinnedBuffer(int64_t bytes)
    : data_(static_cast<std::byte*>(std::malloc(size_t(bytes + 1)))), bytes_(bytes) {}

void DestroyHandle::operator()(std::byte* page_locked) const noexcept { std::free(page_locked); }
void DestroyHandle::operator()(CUstream_st* stream) const noexcept { delete stream; }
void DestroyHandle::operator()(CUevent_st* event) const noexcept { delete event; }
void DestroyHandle::operator()(CUgraphExec_st* graph) const noexcept { delete graph; }

Stream::Stream(Priority) : handle_(new CUstream_st) {}
void Stream::wait(const Event& event) const {
  const std::lock_guard lock(world());
  check(!handle_->recorded || event.handle()->work == handle_->work,
        "a graph that waits for an event outside of it");
  const CUevent_st now = *event.handle();  // the latest record, as on CUDA
  if (now.work) emulate_launch(handle(), [now] { now.work->run_until(now.position); });
}
void Stream::copy(void* into, const void* from, int64_t bytes) const {
  emulate_launch(handle(), [=] {
    if (bytes > 0) std::memcpy(into, from, size_t(bytes));
  });
}
void Stream::fill(void* at, int byte, int64_t bytes) const {
  emulate_launch(handle(), [=] {
    if (bytes > 0) std::memset(at, byte, size_t(bytes));
  });
}
void Stream::synchronize() const {
  check(!handle_->recorded, "a stream is waited for while its graph is recorded");
  until_done([work = handle_->work] { work->run_until(work->queue.size()); });
}

Event::Event(Kind) : handle_(new CUevent_st) {}
void Event::record(const Stream& stream) const {
  const std::lock_guard lock(world());
  check(handle_->device == stream.handle()->device, "an event of device ", handle_->device,
        " on a stream of device ", stream.handle()->device);
  handle_->work = stream.handle()->work;
  handle_->position = stream.handle()->work->queue.size();
}
void Event::synchronize() const {
  until_done([this] { handle_->run(); });
}
bool Event::over() const {
  return is_done([this] { handle_->run(); }, std::chrono::milliseconds(1));
}
double Event::seconds_since(const Event& begin) const {
  const std::lock_guard lock(world());
  check(handle_->work && begin.handle_->work, "times of an event that was never recorded");
  check(handle_->work->ends.size() >= handle_->position, "times of an event that is not over");
  return handle_->time() - begin.handle_->time();
}
// Work enqueued while `record` runs belongs to the graph, not the stream.
Graph::Graph(const Stream& stream, const std::function<void()>& record) {
  CUstream_st& on = *stream.handle();
  std::unique_lock lock(world());
  const auto begin = ptrdiff_t(on.work->queue.size());
  const auto end = [&] {
    lock.lock();
    on.recorded = recording = false;
    auto& queue = on.work->queue;
    handle_.reset(new CUgraphExec_st{{queue.begin() + begin, queue.end()}});
    queue.erase(queue.begin() + begin, queue.end());
  };
  on.recorded = recording = true;
  lock.unlock();
  try {
    record();
  } catch (...) {
    end();
    throw;
  }
  end();
}
void Graph::launch(const Stream& stream) const {
  for (const auto& work : handle_->work) emulate_launch(stream.handle(), work);
}

namespace {
[[noreturn]] void refuse() { throw Error("only one process sees an emulated GPU"); }
}  // namespace

std::string Event::export_handle() const { refuse(); }
Event Event::import_handle(const std::string&) { refuse(); }
std::string export_memory(const void*) { refuse(); }
void* import_memory(const std::string&) { refuse(); }
void close_memory(void*) noexcept {}

std::string device_bus_id(int device) { return concat("emulated:", device); }
int current_device() { return this_device; }
int current_multiprocessors() { return describe_devices().devices.front().multiprocessors; }
int64_t device_free_bytes() {
  const std::lock_guard lock(world());
  return device_bytes - taken_bytes[this_device];
}

}  // namespace longnet
