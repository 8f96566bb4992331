// Ranks as processes of MPI: the only file that includes <mpi.h>.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <deque>
#include <exception>
#include <map>
#include <numeric>
#include <thread>

#include "comm/mpi/mpi_launch.h"
#include "core/check.h"

namespace longnet {
namespace {

constexpr int64_t kLargestMessage = int64_t{1} << 30;  // MPI counts in ints: longer ones are split
constexpr int kDataTag = 1, kGroupTag = 2;

void require(int code, Located what) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail_at(concat(what.text, " failed: ", text), what.where);
}

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm, bool owned) : comm_(comm), owned_(owned) {
    require(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    require(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    require(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    // A warm run may have more requests in flight than the first one had.
    for (int i = 0; i < 64; ++i) add_in_flight();
  }
  ~MpiCommunicator() override {
    for (auto& [group, collective] : groups_) {
      for (auto& [unit, type] : collective.types) MPI_Type_free(&type);
      MPI_Comm_free(&collective.comm);
    }
    if (owned_) MPI_Comm_free(&comm_);
  }

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return kMpi; }

  Request iall_gather(const RankGroup& group, std::span<std::byte> into,
                      std::span<const int64_t> counts) override {
    list_all_gather(group, rank_, into, counts, collective_);
    Collective& c = opened(group);
    const int64_t unit = common_unit(counts, int64_t(into.size()));
    if (unit <= 0) return post(collective_);
    counters_.modelled(collective_);
    const Request id = new_request();
    InFlight& f = in_flight(id);
    f.into.set(counts, unit);
    require(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, into.data(), f.into.counts.data(),
                            f.into.begins.data(), c.type_of(unit), c.comm, f.add({})),
            "MPI_Iallgatherv");
    return id;
  }

  Request iall_to_all(const RankGroup& group, std::span<const std::byte> from,
                      std::span<const int64_t> from_counts, std::span<std::byte> into,
                      std::span<const int64_t> into_counts) override {
    list_all_to_all(group, rank_, from, from_counts, into, into_counts, collective_);
    counters_.modelled(collective_);
    Collective& c = opened(group);
    const Request id = new_request();
    // Members see different counts, so the unit must not depend on them: rows are multiples of 4
    // bytes. For the same reason a rank cannot fall back to another way on its own.
    constexpr int64_t kUnit = 4;
    check(int64_t(std::max(from.size(), into.size())) / kUnit <= INT_MAX, "an all-to-all of ",
          std::max(from.size(), into.size()),
          " bytes is more than MPI_Ialltoallv counts; use sweep.collective=pairwise or linear");
    InFlight& f = in_flight(id);
    f.from.set(from_counts, kUnit);
    f.into.set(into_counts, kUnit);
    const MPI_Datatype type = c.type_of(kUnit);
    require(
        MPI_Ialltoallv(from.data(), f.from.counts.data(), f.from.begins.data(), type, into.data(),
                       f.into.counts.data(), f.into.begins.data(), type, c.comm, f.add({})),
        "MPI_Ialltoallv");
    return id;
  }

  Request post(std::span<const Transfer> transfers) override {
    const Request id = new_request();
    InFlight& f = in_flight(id);
    for (const Transfer& t : transfers)
      for (int64_t at = 0; at < t.bytes; at += kLargestMessage) {
        const int bytes = int(std::min(kLargestMessage, t.bytes - at));
        const int64_t ended = at + bytes == t.bytes ? t.bytes : 0;
        if (t.kind == Transfer::Kind::kSend)
          require(MPI_Isend(t.data + at, bytes, MPI_BYTE, t.peer, kDataTag, comm_,
                            f.add({Part::Kind::kSend, bytes, ended})),
                  "MPI_Isend");
        else
          require(MPI_Irecv(t.data + at, bytes, MPI_BYTE, t.peer, kDataTag, comm_,
                            f.add({Part::Kind::kRecv, bytes, ended})),
                  "MPI_Irecv");
      }
    return id;
  }

  bool test(Request id) override {
    InFlight& f = in_flight(id);
    int done = 0;
    require(MPI_Testall(int(f.parts.size()), f.parts.data(), &done, f.statuses.data()),
            "MPI_Testall");
    if (done != 0) finish(f);
    return done != 0;
  }

  void wait(Request id) override {
    InFlight& f = in_flight(id);
    require(MPI_Waitall(int(f.parts.size()), f.parts.data(), f.statuses.data()), "MPI_Waitall");
    finish(f);
  }

  // A process that fails ends the job: its buffers need no care.
  void abandon() override {}

  void barrier() override { require(MPI_Barrier(comm_), "MPI_Barrier"); }

  void resting_barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    require(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
    for (int done = 0; done == 0;) {
      require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void open_group(const RankGroup& group) override {
    if (groups_.contains(group)) return;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    std::vector<int> members;
    for (int i = 0; i < group.count; ++i) members.push_back(group[i]);
    require(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
    require(MPI_Group_incl(all, group.count, members.data(), &some), "MPI_Group_incl");
    Collective c;
    require(MPI_Comm_create_group(comm_, some, kGroupTag, &c.comm), "MPI_Comm_create_group");
    require(MPI_Comm_set_errhandler(c.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    groups_.emplace(group, std::move(c));
  }

  void all_max(std::span<double> values) override { reduce(values, MPI_MAX); }
  void all_sum(std::span<double> values) override { reduce(values, MPI_SUM); }

  void broadcast(std::span<std::byte> data, Rank root) override {
    check(int64_t(data.size()) <= kLargestMessage, "broadcast of ", data.size(), " bytes");
    require(MPI_Bcast(data.data(), int(data.size()), MPI_BYTE, root, comm_), "MPI_Bcast");
  }

  std::vector<std::string> all_texts(const std::string& mine) override {
    std::vector<int> sizes(size_t(size_), 0), displacements(size_t(size_), 0);
    const int own = int(mine.size());
    require(MPI_Allgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_), "MPI_Allgather");
    std::partial_sum(sizes.begin(), sizes.end() - 1, displacements.begin() + 1);
    std::string all(size_t(displacements.back() + sizes.back()), ' ');
    require(MPI_Allgatherv(mine.data(), own, MPI_CHAR, all.data(), sizes.data(),
                           displacements.data(), MPI_CHAR, comm_),
            "MPI_Allgatherv");
    std::vector<std::string> texts;
    for (size_t i = 0; i < sizes.size(); ++i)
      texts.push_back(all.substr(size_t(displacements[i]), size_t(sizes[i])));
    return texts;
  }

  std::unique_ptr<Communicator> first_ranks(int count) override {
    MPI_Comm part = MPI_COMM_NULL;
    require(MPI_Comm_split(comm_, rank_ < count ? 0 : MPI_UNDEFINED, rank_, &part),
            "MPI_Comm_split");
    if (part == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiCommunicator>(part, /*owned=*/true);
  }

  void abort(const std::string&) override { MPI_Abort(comm_, 1); }

 private:
  // Counts and displacements as MPI takes them: ints, in units of some bytes.
  struct Parts {
    std::vector<int> counts, begins;
    void set(std::span<const int64_t> bytes, int64_t unit) {
      counts.resize(bytes.size());
      begins.resize(bytes.size());
      int64_t at = 0;
      for (size_t i = 0; i < bytes.size(); ++i) {
        counts[i] = int(bytes[i] / unit);
        begins[i] = int(at);
        at += counts[i];
      }
    }
  };
  // A sub-communicator and the types of its collectives, made ahead of timed regions.
  struct Collective {
    MPI_Comm comm = MPI_COMM_NULL;
    std::map<int64_t, MPI_Datatype> types;  // types by unit
    MPI_Datatype type_of(int64_t unit) {
      auto [it, is_new] = types.try_emplace(unit, MPI_DATATYPE_NULL);
      if (is_new) {
        require(MPI_Type_contiguous(int(unit), MPI_BYTE, &it->second), "MPI_Type_contiguous");
        require(MPI_Type_commit(&it->second), "MPI_Type_commit");
      }
      return it->second;
    }
  };

  Collective& opened(const RankGroup& group) {
    const auto known = groups_.find(group);
    check(known != groups_.end(), "the group of ranks ", group[0], "..", group[group.count - 1],
          " is not open");
    return known->second;
  }
  // The largest size that divides all parts; 0: all are empty; -1: even so an int cannot count
  // them.
  static int64_t common_unit(std::span<const int64_t> counts, int64_t total) {
    int64_t unit = 0;
    for (int64_t c : counts) unit = std::gcd(unit, c);
    return unit == 0 || (total / unit <= INT_MAX && unit <= INT_MAX) ? unit : -1;
  }
  // One MPI request: the end of a message, or an earlier part of a long one; a collective does not
  // tell its bytes.
  struct Part {
    enum class Kind { kCollective, kSend, kRecv } kind = Kind::kCollective;
    int bytes = 0;
    int64_t message_bytes = 0;  // length of the message that ends here; 0: it goes on
  };
  // One operation of a Communicator: its MPI requests and the data that they need while they are in
  // flight. Vectors keep their capacity, so that a warm region allocates nothing.
  struct InFlight {
    bool in_use = false;
    std::vector<MPI_Request> parts;
    std::vector<MPI_Status> statuses;
    std::vector<Part> moved;
    Parts from, into;  // MPI may read counts until a collective has ended
    MPI_Request* add(const Part& part) {
      moved.push_back(part);
      statuses.emplace_back();
      return &parts.emplace_back(MPI_REQUEST_NULL);
    }
  };

  InFlight& in_flight(Request id) { return requests_.at(size_t(id)); }
  InFlight& add_in_flight() {
    InFlight& f = requests_.emplace_back();
    f.parts.reserve(8);
    f.statuses.reserve(8);
    f.moved.reserve(8);
    for (Parts* parts : {&f.from, &f.into}) {
      parts->counts.reserve(size_t(size_));
      parts->begins.reserve(size_t(size_));
    }
    return f;
  }
  Request new_request() {
    for (size_t i = 0; i < requests_.size(); ++i)
      if (!requests_[i].in_use) {
        requests_[i].in_use = true;
        return Request(i);
      }
    add_in_flight().in_use = true;
    return Request(requests_.size()) - 1;
  }
  // Counts what MPI has moved, and checks the length of what arrived: MPI would accept a shorter
  // message silently.
  void finish(InFlight& f) {
    for (size_t i = 0; i < f.moved.size(); ++i) {
      const Part& part = f.moved[i];
      if (part.kind == Part::Kind::kSend && part.message_bytes > 0)
        counters_.sent(part.message_bytes);
      if (part.kind != Part::Kind::kRecv) continue;
      int got = 0;
      require(MPI_Get_count(&f.statuses[i], MPI_BYTE, &got), "MPI_Get_count");
      check(got == part.bytes, "received ", got, " bytes, expected ", part.bytes);
      if (part.message_bytes > 0) counters_.received(part.message_bytes);
    }
    f.parts.clear();
    f.statuses.clear();
    f.moved.clear();
    f.in_use = false;
  }

  void reduce(std::span<double> values, MPI_Op op) {
    require(MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_DOUBLE, op, comm_),
            "MPI_Allreduce");
  }

  MPI_Comm comm_;
  bool owned_;
  int rank_ = 0, size_ = 1;
  std::deque<InFlight> requests_;  // stable addresses: MPI keeps pointers into them
  std::map<RankGroup, Collective> groups_;
};

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, size_t(length));
  return version.substr(0, version.find(','));
}

// Initialises MPI (thread level: funneled) and finalises it when destroyed.
class MpiWorld final : public RankProcesses {
 public:
  MpiWorld() {
    int provided = 0;
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    check(provided >= MPI_THREAD_FUNNELED, "MPI gives thread level ", provided,
          ", funneled is needed");
    communicator_ = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, /*owned=*/false);
    const int expected = mpi_launch().value_or(Launch{}).ranks, seen = communicator_->size();
    if (expected != seen)  // the sign of a program linked with another MPI
      throw Error("the launcher started ", expected, " ranks but MPI sees ", seen,
                  ": this program is linked with another MPI (", longnet::library_version(),
                  "); start it with that one's mpirun");
  }
  ~MpiWorld() override {
    // A rank that leaves by an exception cannot finalise: the others may be waiting for it
    // elsewhere. It ends without, and the launcher then ends them.
    if (std::uncaught_exceptions() > exceptions_before_) return;
    communicator_.reset();
    MPI_Finalize();
  }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  Communicator& communicator() override { return *communicator_; }
  std::string library_version() const override { return longnet::library_version(); }

 private:
  std::unique_ptr<Communicator> communicator_;
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace

HostTransport mpi_transport() {
  HostTransport row = mpi_row();
  row.join = [] { return std::make_unique<MpiWorld>(); };
  return row;
}

}  // namespace longnet
