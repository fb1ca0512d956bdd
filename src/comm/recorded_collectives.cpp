#include "trireme/comm/recorded_collectives.hpp"

#include <vector>

namespace trireme::comm {
namespace {

std::vector<RecordedCollectives*>& owners() {
  static std::vector<RecordedCollectives*> owners;
  return owners;
}

}  // namespace

RecordedCollectives::RecordedCollectives() { owners().push_back(this); }
RecordedCollectives::~RecordedCollectives() { std::erase(owners(), this); }

void RecordedCollectives::drop_all() {
  for (RecordedCollectives* owner : owners()) owner->drop();
}

}  // namespace trireme::comm
