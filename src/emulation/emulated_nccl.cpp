#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_functions.h"
#include "core/check.h"
#include "emulation/emulated_device.h"

namespace {

using longnet::check;
using longnet::concat;

// One rank's side of a message, or of a collective.
struct Call {
  enum class Kind { kSend, kRecv, kAllGather, kBroadcast } kind;
  const std::byte* from = nullptr;
  std::byte* into = nullptr;
  size_t bytes = 0;  // in an all-gather: bytes of one rank
  int peer = 0;      // or root
  std::function<void()> begin{};
  bool moved = false;
  size_t number = 0;  // in its list
};
using Calls = std::vector<std::shared_ptr<Call>>;

struct Shared {
  int size = 0;
  std::set<int> members{}, devices{};
  std::map<std::pair<int, int>, Calls> sends{}, recvs{};  // by (from, to)
  std::map<int, Calls> collectives{};                     // by rank
  std::set<std::pair<int, int>> connecting{};             // (one end, the other)
};

}  // namespace

// A rank's handle.
struct ncclComm {
  std::shared_ptr<Shared> shared;
  int rank;
  std::map<const std::byte*, size_t> registered{};
  int64_t calls = 0;
};

namespace {

// Taken after the lock of the streams, where both are held.
std::mutex& state() {
  static std::mutex mutex;
  return mutex;
}
std::condition_variable changed;
constexpr std::chrono::seconds kPatience{20};
std::map<int, std::shared_ptr<Shared>> worlds;
int ids = 0;
longnet::NcclUse use;
int failing_rank = -1;
int64_t failing_call = 0;

struct Posted {
  ncclComm* comm;
  std::shared_ptr<Call> call;
  CUstream_st* stream;
};
thread_local int depth = 0;
thread_local std::vector<Posted> group;

bool is_registered(const ncclComm& comm, const std::byte* at, size_t bytes) {
  if (at == nullptr) return true;
  auto it = comm.registered.upper_bound(at);
  return it != comm.registered.begin() &&
         at + bytes <= std::prev(it)->first + std::prev(it)->second;
}

// The memory of a rank that failed may be gone.
void copy(std::byte* into, const std::byte* from, size_t bytes) {
  if (into == from || bytes == 0) return;
  for (const std::byte* at : {const_cast<const std::byte*>(into), from}) {
    const auto [first, end] = longnet::emulated_buffer(at);
    check(first != nullptr && at + bytes <= end, "a message of ", bytes,
          " bytes outside of every buffer of the devices");
  }
  std::memcpy(into, from, bytes);
}

bool is_message(const Call& call) {
  return call.kind == Call::Kind::kSend || call.kind == Call::Kind::kRecv;
}

// Returns lists whose calls of one number belong together: those of a message's sender and of its
// receiver, or of all ranks.
std::vector<Calls*> matching_lists(Shared& shared, const Call& call, int me) {
  const bool sends = call.kind == Call::Kind::kSend;
  const std::pair ends = sends ? std::pair(me, call.peer) : std::pair(call.peer, me);
  if (is_message(call)) return {&shared.sends[ends], &shared.recvs[ends]};
  std::vector<Calls*> all;
  for (int rank = 0; rank < shared.size; ++rank) all.push_back(&shared.collectives[rank]);
  return all;
}

Calls& own_list(Shared& shared, const Call& call, int me) {
  const bool receives = call.kind == Call::Kind::kRecv;
  return *matching_lists(shared, call, me)[is_message(call) ? size_t(receives) : size_t(me)];
}

// Returns the call and those that belong to it, when all have been made.
Calls matching_calls(Shared& shared, const Call& call, int me) {
  const std::lock_guard lock(state());
  const auto lists = matching_lists(shared, call, me);
  const size_t k = call.number;
  Calls all;
  for (size_t i = 0; i < lists.size(); ++i) {
    if (k >= lists[i]->size())
      throw longnet::NotYet(
          is_message(call)
              ? concat("message ", k, " of ranks ", me, " and ", call.peer, " has no other end")
              : concat("collective ", k, ": rank ", i, " does not come"));
    all.push_back((*lists[i])[k]);
  }
  return all;
}

void move(Shared& shared, Call& call, int me) {
  const Calls all = matching_calls(shared, call, me);
  for (const auto& other : all) {
    check(other->bytes == call.bytes, "ranks ", me, " and others move ", call.bytes, " and ",
          other->bytes, " bytes by one call");
    check(is_message(call) || (other->kind == call.kind && other->peer == call.peer),
          "ranks call different collectives");
    other->begin();
  }
  if (call.moved) return;
  for (const auto& member : all) member->moved = true;
  if (is_message(call)) return copy(all[1]->into, all[0]->from, call.bytes);
  for (const auto& member : all) {
    if (call.kind == Call::Kind::kBroadcast) {
      copy(member->into, all[size_t(call.peer)]->from, call.bytes);
      continue;
    }
    for (size_t from = 0; from < all.size(); ++from)
      copy(member->into + from * call.bytes, all[from]->from, call.bytes);
  }
}

void post_group() {
  const std::vector<Posted> posted = std::exchange(group, {});
  if (posted.empty()) return;
  CUstream_st* const stream = posted.front().stream;
  const auto begin = longnet::emulate_all_before(stream);
  std::set<std::pair<Shared*, std::pair<int, int>>> awaited;
  {
    std::unique_lock lock(state());
    ++use.kernels;
    for (const Posted& p : posted) {
      check(p.stream == stream, "a group on several streams");
      Call& call = *p.call;
      call.begin = begin;
      Shared& shared = *p.comm->shared;
      const int me = p.comm->rank;
      ++use.calls;
      const size_t parts = call.kind == Call::Kind::kAllGather ? size_t(shared.size) : 1;
      use.registered_calls += is_registered(*p.comm, call.from, call.bytes) &&
                              is_registered(*p.comm, call.into, parts * call.bytes);
      check(!is_message(call) || (call.peer != me && call.peer >= 0 && call.peer < shared.size),
            "no such peer");
      Calls& list = own_list(shared, call, me);
      call.number = list.size();
      list.push_back(p.call);
      for (int peer = 0; peer < shared.size; ++peer) {
        if (peer == me || (is_message(call) && peer != call.peer)) continue;
        shared.connecting.insert({me, peer});
        awaited.insert({&shared, {peer, me}});
      }
    }
    changed.notify_all();
    for (const auto& [shared, ends] : awaited)
      check(changed.wait_for(lock, kPatience, [&] { return shared->connecting.contains(ends); }),
            "ncclGroupEnd waits for ever: rank ", ends.first, " does not connect to ", ends.second);
  }
  longnet::emulate_launch(stream, [posted] {
    for (const Posted& p : posted) move(*p.comm->shared, *p.call, p.comm->rank);
  });
}

ncclResult_t add(ncclComm* comm, Call call, CUstream_st* stream) {
  if (comm->rank == failing_rank && comm->calls++ == failing_call) return ncclInternalError;
  group.push_back({comm, std::make_shared<Call>(std::move(call)), stream});
  if (depth == 0) post_group();
  return ncclSuccess;
}

const std::byte* bytes(const void* at) { return static_cast<const std::byte*>(at); }
std::byte* bytes(void* at) { return static_cast<std::byte*>(at); }

ncclResult_t unique_id(ncclUniqueId* id) {
  const std::lock_guard lock(state());
  ++ids;
  std::memcpy(id->internal, &ids, sizeof ids);
  return ncclSuccess;
}

ncclResult_t init(ncclComm** comm, int size, ncclUniqueId id, int rank) {
  int key = 0;
  std::memcpy(&key, id.internal, sizeof key);
  std::unique_lock lock(state());
  auto& shared = worlds[key];
  if (!shared) shared = std::make_shared<Shared>(Shared{.size = size});
  check(shared->size == size && shared->members.insert(rank).second && rank < size,
        "ncclCommInitRank: rank ", rank, " of ", size);
  const int device = longnet::current_device();
  check(shared->devices.insert(device).second, "ncclCommInitRank: two ranks on device ", device);
  *comm = new ncclComm{shared, rank};
  changed.notify_all();
  const Shared& s = *shared;
  check(changed.wait_for(lock, kPatience, [&s] { return int(s.members.size()) == s.size; }),
        "ncclCommInitRank waits for ever: ", s.members.size(), " of ", size, " ranks");
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm* comm) {
  check(comm->registered.empty(), "ncclCommDestroy: buffers are still registered");
  delete comm;
  return ncclSuccess;
}

ncclResult_t register_buffer(const ncclComm_t comm, void* at, size_t size, void** handle) {
  const std::lock_guard lock(state());
  comm->registered[bytes(at)] = size;
  ++use.registered_buffers;
  *handle = at;
  return ncclSuccess;
}

ncclResult_t deregister_buffer(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(state());
  check(comm->registered.erase(bytes(handle)) == 1, "ncclCommDeregister: unknown buffer");
  --use.registered_buffers;
  return ncclSuccess;
}

}  // namespace

namespace longnet {

NcclUse nccl_use() {
  const std::lock_guard lock(state());
  return use;
}

void emulate_nccl_failure(int rank, int64_t call) {
  failing_rank = rank;
  failing_call = call;
}

const NcclFunctions& nccl() {
  using Kind = Call::Kind;
  using Type = ncclDataType_t;
  static const NcclFunctions functions{
      .missing = "",
      .version = [](int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; },
      .error_string = [](ncclResult_t) { return "emulated"; },
      .last_error = [](ncclComm*) { return "emulated"; },
      .unique_id = unique_id,
      .init = init,
      .destroy = destroy,
      .abort = [](ncclComm*) { return ncclSuccess; },  // its kernels will never run
      .async_error = [](ncclComm*, ncclResult_t* result) { return *result = ncclSuccess; },
      .group_start = [] { return ++depth, ncclSuccess; },
      .group_end = [] { return --depth == 0 ? post_group() : void(), ncclSuccess; },
      .send =
          [](const void* from, size_t count, Type, int peer, ncclComm* comm, CUstream_st* on) {
            return add(comm, {Kind::kSend, bytes(from), nullptr, count, peer}, on);
          },
      .recv =
          [](void* into, size_t count, Type, int peer, ncclComm* comm, CUstream_st* on) {
            return add(comm, {Kind::kRecv, nullptr, bytes(into), count, peer}, on);
          },
      .all_gather =
          [](const void* from, void* into, size_t count, Type, ncclComm* comm, CUstream_st* on) {
            return add(comm, {Kind::kAllGather, bytes(from), bytes(into), count, 0}, on);
          },
      .broadcast =
          [](const void* from, void* into, size_t count, Type, int root, ncclComm* comm,
             CUstream_st* on) {
            return add(comm, {Kind::kBroadcast, bytes(from), bytes(into), count, root}, on);
          },
      .register_buffer = register_buffer,
      .deregister_buffer = deregister_buffer,
  };
  return functions;
}

}  // namespace longnet
