// A rank's program, bound to memory of its own, which begins as zeros.
#pragma once
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "execute/bound_program.h"

namespace longnet {

class BoundRank {
 public:
  BoundRank(const Schedule& schedule, Rank rank, int64_t first_batch = 0) {
    RankProgram program = schedule.program(rank);
    for (const Slot& slot : program.slots) blocks_.emplace_back(size_t(slot.bytes));
    BoundProgram::Memory memory(blocks_.begin(), blocks_.end());
    bound_.emplace(schedule, std::move(program),
                   BindOptions{.rank = rank, .first_batch = first_batch}, std::move(memory));
  }
  const BoundProgram& operator*() const { return *bound_; }
  const BoundProgram* operator->() const { return &*bound_; }
  template <class Kind>
  std::vector<OpId> ops() const {
    std::vector<OpId> found;
    for (size_t i = 0; i < bound_->program().ops.size(); ++i)
      if (std::holds_alternative<Kind>(bound_->program().ops[i].what)) found.push_back(OpId(i));
    return found;
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
  std::optional<BoundProgram> bound_;
};

}  // namespace longnet
