// The reference of the KL terms follows the actor every reference.sync_every iterations. Its
// weights are files in <run.dir>/reference, so that a restart compares with what the run compared
// with.
#pragma once

#include <cstdint>

#include "driver/ppo_roles.hpp"

namespace trireme::driver {

// After iteration `iteration`, from 1 on: where it is due, the actor's weights become the
// reference's. Folders that no checkpoint needs any more are removed. Collective over world.
void sync_reference(PpoRoles& roles, int64_t iteration);
// After a resume at so many finished iterations: the reference that the run had then. Throws
// UserError(input_missing) on all ranks where its folder is not there. Collective over world.
void restore_reference(PpoRoles& roles, int64_t iteration);

}  // namespace trireme::driver
