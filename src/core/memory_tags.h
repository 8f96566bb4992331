// Tags of buffers that more than one room books or tells apart (tagged_memory.h); those of slots
// are schedule's.
#pragma once

namespace longnet {

inline constexpr char kWorkspaceTag[] = "workspace";  // a kernel's scratch memory
// Lists that a GPU holds beside the slots: tasks and tiles. They follow from its kernel.
inline constexpr char kTaskLists[] = "task_lists";
// Lists of a program and its executor: dependencies, tasks, messages in flight. No plan predicts
// them.
inline constexpr char kProgramLists[] = "program_lists";

}  // namespace longnet
