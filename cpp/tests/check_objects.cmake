# SPDX-License-Identifier: BSD-3-Clause
#
# cmake -DNM=... -DOBJDUMP=... -DOBJECTS=... -P check_objects.cmake
#
# Checks the symbols of one instruction set's object file. A weak symbol compiled with AVX could be linked into code
# that runs without it, and the baseline must not contain AVX at all.

function(check_widest_register object expected)
  execute_process(COMMAND ${OBJDUMP} -d --no-show-raw-insn ${object} OUTPUT_VARIABLE code
    COMMAND_ERROR_IS_FATAL ANY)
  set(widest xmm)
  foreach(register ymm zmm)
    if(code MATCHES "%${register}")
      set(widest ${register})
    endif()
  endforeach()
  if(NOT widest STREQUAL expected)
    message(SEND_ERROR "${object}: the widest registers must be ${expected}, got ${widest}")
  endif()
endfunction()

foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [WwVvu] [^\n]+" weak "${symbols}")
  if(weak)
    list(JOIN weak "\n  " weak)
    message(SEND_ERROR "weak symbols in ${object}:\n  ${weak}")
  endif()
  if(NOT symbols MATCHES "[0-9a-f]+ [RDB] [^\n]*attnscale6detail")
    message(SEND_ERROR "no table of kernels in ${object}: is this the right file?")
  endif()

  foreach(expected baseline:xmm avx2:ymm avx512:zmm avx512_bf16:zmm amx_bf16:zmm)
    string(REPLACE ":" ";" expected ${expected})
    list(POP_FRONT expected level)
    if(object MATCHES "/attnscale_kernels_${level}\\.dir/")
      check_widest_register(${object} ${expected})
    endif()
  endforeach()
endforeach()
