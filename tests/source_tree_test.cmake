# Which tree's id does cmake/source_tree.cmake write? A checkout's own; of a copy in one, what .source_tree says.
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR}/checkout/copy)

function(git)
  execute_process(COMMAND git -c user.name=test -c user.email=test@localhost ${ARGV} WORKING_DIRECTORY ${WORK_DIR}/checkout
    OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(output ${output} PARENT_SCOPE)
endfunction()

# expect(<folder> <id>)
function(expect folder id)
  execute_process(COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${WORK_DIR}/checkout/${folder} -D OUTPUT=${WORK_DIR}/id.cc
    -P ${SOURCE_DIR}/cmake/source_tree.cmake COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${WORK_DIR}/id.cc text)
  if(NOT text MATCHES "return \"${id}\"")
    message(FATAL_ERROR "'${folder}' should have the id ${id}: ${text}")
  endif()
endfunction()

git(init --quiet)
file(WRITE ${WORK_DIR}/checkout/copy/file "1")
git(add copy)
git(commit --quiet -m first)
git(rev-parse HEAD^{tree})
expect("" ${output})
expect(copy unknown)
file(WRITE ${WORK_DIR}/checkout/copy/.source_tree "0123abc\n")
expect(copy 0123abc)
expect("" ${output}-dirty)
