# flashlatent_source_tree(<target>): a target that writes source_tree.cc of the current binary folder, with the id of
# the git tree (cmake/source_tree.cmake). The checkout's path may have any characters.
set(FLASHLATENT_SOURCE_TREE_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/source_tree.cmake)
function(flashlatent_source_tree target)
  add_custom_target(${target}
    COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D OUTPUT=${CMAKE_CURRENT_BINARY_DIR}/source_tree.cc
            -P ${FLASHLATENT_SOURCE_TREE_SCRIPT}
    BYPRODUCTS ${CMAKE_CURRENT_BINARY_DIR}/source_tree.cc COMMENT "" VERBATIM)
endfunction()
