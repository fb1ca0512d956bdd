// Which checkpoint a start takes.
#include "driver/resume_point.hpp"

#include <gtest/gtest.h>

#include "support/samples.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/driver/run_state.hpp"

namespace trireme::driver {
namespace {

using test::world;

// ckpt.resume as a relative path names another checkpoint on a rank that works elsewhere: rank 0's
// counts, since collectives follow.
TEST(ResumePoint, RanksInOtherFoldersAgree) {
  const test::SharedFolder folder;
  const std::string relative = "other/step-000003";
  RunState state;
  state.iteration = 1;
  state.resumed_from = world().broadcast(name_of_checkpoint(relative), 0);
  checkpoint::Content content;
  content.state = to_json(state);
  checkpoint::save(world(), folder.path() / "ckpt", 1, content);
  const auto before = std::filesystem::current_path();
  if (world().rank() != 0) std::filesystem::current_path("/");
  EXPECT_FALSE(takes_named_checkpoint(relative, folder.path() / "ckpt", world()))
      << "it was obeyed";
  EXPECT_TRUE(takes_named_checkpoint("other/step-000004", folder.path() / "ckpt", world()));
  EXPECT_TRUE(takes_named_checkpoint(relative, folder.path() / "none", world()));
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace trireme::driver
