// The communicator of the test job. MPI is started and ended by the test main.
#pragma once

#include "trireme/comm/session.hpp"

namespace trireme::test {

inline const comm::CommView& world() {
  static auto* session = new comm::Session;  // never destroyed: MPI ends before statics do
  return session->world();
}

}  // namespace trireme::test
