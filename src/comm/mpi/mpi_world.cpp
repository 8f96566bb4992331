#include "comm/mpi/mpi_world.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>

#include "core/check.h"

namespace longnet {
namespace {

constexpr size_t kLargestMessage = size_t{1}
                                   << 30;  // MPI counts are ints: longer messages are split
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
    requests_.reserve(64);
  }
  ~MpiCommunicator() override {
    for (auto& [group, gatherer] : groups_) {
      for (auto& [unit, type] : gatherer.types) MPI_Type_free(&type);
      MPI_Comm_free(&gatherer.comm);
    }
    if (owned_) MPI_Comm_free(&comm_);
  }

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return "mpi"; }

  Request isend(Rank to, std::span<const std::byte> data) override {
    count_send(data.size());
    const Request id = new_request();
    post_send(id, to, data);
    return id;
  }

  Request irecv(Rank from, std::span<std::byte> into) override {
    count_receive(into.size());
    const Request id = new_request();
    post_receive(id, from, into);
    return id;
  }

  Request iall_gather(const RankGroup& group, std::span<const std::byte> own,
                      std::span<std::byte> into, std::span<const int64_t> counts) override {
    check(int(counts.size()) == group.count, "a gather needs one count per member");
    count_send(own.size(), group.count - 1);
    count_receive(into.size() - own.size());
    const auto known = groups_.find(group);
    check(known != groups_.end(), "the group of ranks ", group.first, "..", group[group.count - 1],
          " is not open");
    Gatherer& g = known->second;
    const Request id = new_request();
    // Counts and displacements are ints, in units of the largest size that divides all parts.
    int64_t unit = 0;
    for (int64_t c : counts) unit = std::gcd(unit, c);
    if (unit == 0) return id;  // nobody has a row
    if (int64_t(into.size()) / unit > INT_MAX || unit > INT_MAX) {
      gather_by_messages(id, group, own, into, counts);
      return id;
    }
    int64_t at = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      g.counts[i] = int(counts[i] / unit);
      g.displacements[i] = int(at);
      at += g.counts[i];
    }
    const MPI_Datatype type = g.type_of(unit);
    require(MPI_Iallgatherv(own.data(), int(int64_t(own.size()) / unit), type, into.data(),
                            g.counts.data(), g.displacements.data(), type, g.comm,
                            &requests_[size_t(id)].emplace_back()),
            "MPI_Iallgatherv");
    return id;
  }

  bool test(Request id) override {
    auto& parts = requests_.at(size_t(id));
    int done = 0;
    require(MPI_Testall(int(parts.size()), parts.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
    if (done != 0) free_request(id);
    return done != 0;
  }

  void wait(Request id) override {
    auto& parts = requests_.at(size_t(id));
    require(MPI_Waitall(int(parts.size()), parts.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    free_request(id);
  }

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
    int range[1][3] = {{group.first, group[group.count - 1], group.stride}};
    require(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
    require(MPI_Group_range_incl(all, 1, range, &some), "MPI_Group_range_incl");
    Gatherer g;
    g.counts.resize(size_t(group.count));
    g.displacements.resize(size_t(group.count));
    require(MPI_Comm_create_group(comm_, some, kGroupTag, &g.comm), "MPI_Comm_create_group");
    require(MPI_Comm_set_errhandler(g.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    groups_.emplace(group, std::move(g));
  }

  void all_max(std::span<double> values) override { reduce(values, MPI_MAX); }
  void all_sum(std::span<double> values) override { reduce(values, MPI_SUM); }

  void broadcast(std::span<std::byte> data, Rank root) override {
    check(data.size() <= kLargestMessage, "broadcast of ", data.size(), " bytes");
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
  // A sub-communicator and what its gathers need, made ahead of timed regions.
  struct Gatherer {
    MPI_Comm comm = MPI_COMM_NULL;
    std::vector<int> counts, displacements;
    std::map<int64_t, MPI_Datatype> types;  // by unit
    MPI_Datatype type_of(int64_t unit) {
      auto [it, is_new] = types.try_emplace(unit, MPI_DATATYPE_NULL);
      if (is_new) {
        require(MPI_Type_contiguous(int(unit), MPI_BYTE, &it->second), "MPI_Type_contiguous");
        require(MPI_Type_commit(&it->second), "MPI_Type_commit");
      }
      return it->second;
    }
  };

  // Requests keep their capacity, so that a warm region allocates nothing.
  Request new_request() {
    for (size_t i = 0; i < in_use_.size(); ++i)
      if (!in_use_[i]) {
        in_use_[i] = true;
        return Request(i);
      }
    in_use_.push_back(true);
    requests_.emplace_back().reserve(8);
    return Request(requests_.size()) - 1;
  }
  void free_request(Request id) {
    requests_[size_t(id)].clear();
    in_use_[size_t(id)] = false;
  }

  void post_send(Request id, Rank to, std::span<const std::byte> data) {
    for (size_t at = 0; at < data.size(); at += kLargestMessage) {
      const auto part = data.subspan(at, std::min(kLargestMessage, data.size() - at));
      require(MPI_Isend(part.data(), int(part.size()), MPI_BYTE, to, kDataTag, comm_,
                        &requests_[size_t(id)].emplace_back()),
              "MPI_Isend");
    }
  }
  void post_receive(Request id, Rank from, std::span<std::byte> into) {
    for (size_t at = 0; at < into.size(); at += kLargestMessage) {
      const auto part = into.subspan(at, std::min(kLargestMessage, into.size() - at));
      require(MPI_Irecv(part.data(), int(part.size()), MPI_BYTE, from, kDataTag, comm_,
                        &requests_[size_t(id)].emplace_back()),
              "MPI_Irecv");
    }
  }

  void gather_by_messages(Request id, const RankGroup& group, std::span<const std::byte> own,
                          std::span<std::byte> into, std::span<const int64_t> counts) {
    size_t at = 0;
    for (int i = 0; i < group.count; ++i) {
      const auto part = into.subspan(at, size_t(counts[size_t(i)]));
      at += part.size();
      if (group[i] == rank_) {
        std::memcpy(part.data(), own.data(), own.size());
        continue;
      }
      post_send(id, group[i], own);
      post_receive(id, group[i], part);
    }
  }

  void reduce(std::span<double> values, MPI_Op op) {
    require(MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_DOUBLE, op, comm_),
            "MPI_Allreduce");
  }

  MPI_Comm comm_;
  bool owned_;
  int rank_ = 0, size_ = 1;
  std::vector<std::vector<MPI_Request>> requests_;
  std::vector<bool> in_use_;
  std::map<RankGroup, Gatherer> groups_;
};

}  // namespace

struct MpiWorld::State {
  std::unique_ptr<MpiCommunicator> communicator;
};

bool mpi_available() { return true; }

MpiWorld::MpiWorld(int* argc, char*** argv) : state_(std::make_unique<State>()) {
  int provided = 0;
  require(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check(provided >= MPI_THREAD_FUNNELED, "MPI gives thread level ", provided,
        ", funneled is needed");
  state_->communicator = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, /*owned=*/false);
  const int expected = launched_world_size().value_or(1), seen = state_->communicator->size();
  if (expected != seen)
    throw Error(concat("the launcher started ", expected, " ranks but MPI sees ", seen,
                       ": this program is linked with another MPI (", library_version(),
                       "); start it with that one's mpirun"));
}

MpiWorld::~MpiWorld() {
  state_->communicator.reset();
  MPI_Finalize();
}

Communicator& MpiWorld::communicator() { return *state_->communicator; }

std::string MpiWorld::library_version() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, size_t(length));
  return version.substr(0, version.find(','));
}

void MpiWorld::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();
}

}  // namespace longnet
